"""One module a suite; each has `run(quick) -> rows`."""
