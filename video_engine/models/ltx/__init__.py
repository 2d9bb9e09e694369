"""LTX-Video image-to-video."""
