"""Everything durable: jobs, keys, files, batches, webhooks, workers; see `store.Store`."""

from workers.store.artifacts import ArtifactStore
from workers.store.store import Store, open_store

__all__ = ["ArtifactStore", "Store", "open_store"]
