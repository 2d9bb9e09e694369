"""Rank groups: the other ranks of an engine as child processes, watched and started again."""
