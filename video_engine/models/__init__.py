"""One folder a model family; `registry` chooses among them by what a folder holds."""
