"""Tile sizes of the grouped products by matrix unit: one table for launcher and builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernels.ops.block_fp8_gemm.tiles import Tile

_LEAST_STEP = 32
DECODE_ROWS = 32  # up to so many rows an expert on average take the tile of 16 rows


def _tile(rows: int, columns: int, depth: int, warps: int, stages: int) -> Tile:
    return Tile(rows=rows, columns=columns, depth=depth, num_warps=warps, num_stages=stages)


# By phase and product; a third word is a weight format for which another tile fits better. Gate
# and up each take `columns`: two accumulators a program. Formats of a phase share its rows.
TILES: Mapping[str, Mapping[str, Tile]] = {
    "mma.sync": {
        "decode gate_up": _tile(16, 64, 128, 4, 3),
        "decode down": _tile(16, 64, 128, 4, 3),
        "prefill gate_up": _tile(128, 64, 64, 8, 3),
        "prefill gate_up fp8": _tile(128, 64, 32, 8, 4),
        "prefill down": _tile(128, 128, 64, 8, 3),
        "prefill down fp8": _tile(128, 64, 64, 8, 3),
        "prefill down mxfp4": _tile(128, 128, 32, 8, 4),
    },
    "wgmma": {
        "decode gate_up": _tile(16, 64, 128, 4, 4),
        "decode down": _tile(16, 64, 128, 4, 4),
        "prefill gate_up": _tile(128, 64, 64, 8, 4),
        "prefill down": _tile(128, 128, 64, 8, 4),
    },
    "tcgen05": {
        "decode gate_up": _tile(16, 64, 128, 4, 4),
        "decode down": _tile(16, 64, 128, 4, 4),
        "prefill gate_up": _tile(128, 64, 64, 8, 4),
        "prefill down": _tile(128, 128, 64, 8, 4),
    },
    "mfma": {
        "decode gate_up": _tile(16, 64, 128, 4, 2),
        "decode down": _tile(16, 64, 128, 4, 2),
        "prefill gate_up": _tile(128, 64, 64, 8, 2),
        "prefill down": _tile(128, 128, 64, 8, 2),
    },
    "wmma": {
        "decode gate_up": _tile(16, 32, 64, 4, 2),
        "decode down": _tile(16, 64, 64, 4, 2),
        "prefill gate_up": _tile(64, 32, 32, 4, 2),
        "prefill down": _tile(64, 64, 32, 4, 2),
    },
}


def phase_of(num_pairs: int, num_experts: int) -> str:
    """Whether experts see few rows ("decode") or many ("prefill"), on average."""
    return "decode" if num_pairs <= DECODE_ROWS * num_experts else "prefill"


def tile_for(unit: str, phase: str, product: str, *, kind: str, block: int) -> Tile:
    """The tile of a product. A step along K never crosses an fp8 scale block."""
    rows = TILES[unit]
    tile = rows.get(f"{phase} {product} {kind}", rows[f"{phase} {product}"])
    depth = min(tile.depth, block) if kind == "fp8" else tile.depth
    return _tile(tile.rows, tile.columns, depth, tile.num_warps, tile.num_stages)


def fitted(tile: Tile, depth: int) -> Tile:
    """The tile with a step along K that divides `depth`, where one of 32 or more does.

    A last step beyond the depth would have to be masked, which takes registers in every step.
    """
    step = tile.depth
    while step > _LEAST_STEP and depth % step:
        step //= 2
    return tile if depth % step else replace(tile, depth=step)
