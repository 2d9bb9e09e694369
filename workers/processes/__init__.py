"""The worker processes: a resident engine at a queue."""
