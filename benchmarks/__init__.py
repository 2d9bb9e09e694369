"""Benchmarks: commands that print one table and save JSON and PNG."""
