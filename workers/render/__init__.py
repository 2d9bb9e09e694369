"""One video job on a worker: claim, progress, files, finish."""
