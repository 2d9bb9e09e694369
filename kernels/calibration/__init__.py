"""Measuring what this machine takes for computing and for talking, and constants fitted to it."""
