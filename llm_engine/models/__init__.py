"""One file per model family, found through `registry.py`."""
