"""Slow links between two ranks of one machine: the kernel's, or one inside the processes."""
