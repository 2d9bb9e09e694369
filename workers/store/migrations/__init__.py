"""Schema versions of the store, run by `workers.store.migrate`."""
