"""Wan image-to-video: 2.1 (with CLIP tokens), 2.2 (two experts), 2.2 5B (per-token timesteps)."""
