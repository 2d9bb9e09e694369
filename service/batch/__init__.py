"""The render queue: shot lists, batches, their contact sheet."""
