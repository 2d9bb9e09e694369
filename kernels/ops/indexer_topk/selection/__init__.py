"""The best of a stream of scores."""
