"""Prefill over two ranks and a slow link: serial, overlapped, predicted, and stage by stage."""
