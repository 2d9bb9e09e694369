"""How much of a payload a program handles: what launchers and builds share."""

TILE_BLOCKS = 16
NUM_WARPS = 4
