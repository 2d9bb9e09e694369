"""Tiles of decode over pages by matrix unit and head dim; `rows` are query heads of a group."""

from __future__ import annotations

from kernels.ops.full_attention.tiles import Table, tile

# Sixteen rows: what the smallest matrix instruction takes. A larger group has as many rows as its
# next power of two.
ROWS = 16

_PIPELINED = {64: tile(ROWS, 64, 4, 3), 128: tile(ROWS, 64, 4, 3), 256: tile(ROWS, 32, 4, 3)}
TILES: Table = {
    "mma.sync": _PIPELINED,
    "wgmma": _PIPELINED,
    "tcgen05": _PIPELINED,
    "mfma": {64: tile(ROWS, 64, 4, 1), 128: tile(ROWS, 64, 4, 1), 256: tile(ROWS, 32, 4, 1)},
    "wmma": {64: tile(ROWS, 32, 4, 1), 128: tile(ROWS, 16, 4, 1), 256: tile(ROWS, 16, 4, 1)},
}
