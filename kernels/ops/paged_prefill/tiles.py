"""Tiles of prefill over pages by matrix unit and head dim."""

from __future__ import annotations

from kernels.ops.full_attention.tiles import Table, tile

# Page look-ups and the mask take registers that full attention does not need, so some are smaller.
TILES: Table = {
    "mma.sync": {
        64: tile(128, 64, 8, 3),
        128: tile(128, 32, 8, 3),
        256: tile(128, 16, 8, 2, parts=2),
    },
    "wgmma": {
        64: tile(128, 128, 8, 3),
        128: tile(128, 64, 8, 3),
        256: tile(128, 32, 8, 2, parts=2),
    },
    "tcgen05": {
        64: tile(128, 128, 8, 3),
        128: tile(128, 64, 8, 3),
        256: tile(128, 32, 8, 2, parts=2),
    },
    "mfma": {64: tile(128, 64, 4, 1), 128: tile(128, 64, 4, 1), 256: tile(64, 32, 8, 1)},
    "wmma": {
        64: tile(128, 32, 8, 1),
        128: tile(64, 16, 8, 1),
        256: tile(64, 16, 8, 1, parts=4),
    },
}
