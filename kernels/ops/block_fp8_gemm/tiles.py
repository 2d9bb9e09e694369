"""Tile sizes by matrix unit: one table for the launcher and for the offline builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits

SKINNY_ROWS = 32  # at most so many rows take the skinny tile and split K
_MIN_SPLIT_DEPTH = 512  # shorter pieces of K cost more in partial sums than they gain
_ENOUGH_PROGRAMS = 512  # above this the card is full without a split


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One program's share. Units: elements; `depth` is the step along K."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


# Which rows of the tables serve which families that are compiled offline.
FAMILIES_BY_UNIT: Mapping[str, tuple[str, ...]] = {
    "mma.sync": ("sm_80", "sm_86", "sm_89", "sm_120"),
    "wgmma": ("sm_90",),
    "tcgen05": ("sm_100",),
    "mfma": ("gfx942",),
    "wmma": ("gfx1100",),
}
SMALLEST_UNIT = "wmma"  # families that are in no row: the tiles that ask for least


def matrix_unit(traits: DeviceTraits) -> str:
    """The row of the tile tables that serves a device."""
    return traits.mma_family if traits.mma_family in FAMILIES_BY_UNIT else SMALLEST_UNIT


def _tile(rows: int, columns: int, depth: int, warps: int, stages: int) -> Tile:
    return Tile(rows=rows, columns=columns, depth=depth, num_warps=warps, num_stages=stages)


# By phase and by what is multiplied: "e4m3" by the matrix unit itself, "bytes" (e4m3 rows decoded
# to bf16) or "wide" (rows of 16 bits). A third word is a block for which another tile fits better.
_SKINNY = _tile(16, 64, 128, 4, 4)
TILES: Mapping[str, Mapping[str, Tile]] = {
    "mma.sync": {
        "skinny e4m3": _SKINNY,
        "skinny bytes": _SKINNY,
        "skinny wide": _SKINNY,
        "prefill e4m3": _tile(128, 128, 128, 8, 3),
        "prefill bytes": _tile(128, 128, 32, 8, 4),
        "prefill wide": _tile(128, 128, 64, 8, 3),
    },
    "wgmma": {
        "skinny e4m3": _SKINNY,
        "skinny bytes": _SKINNY,
        "skinny wide": _SKINNY,
        "prefill e4m3": _tile(128, 128, 128, 8, 4),
        "prefill bytes": _tile(128, 128, 64, 8, 4),
        "prefill wide": _tile(128, 128, 64, 8, 4),
    },
    "tcgen05": {
        "skinny e4m3": _SKINNY,
        "skinny bytes": _SKINNY,
        "skinny wide": _SKINNY,
        "prefill e4m3": _tile(128, 128, 128, 8, 4),
        "prefill e4m3 32": _tile(128, 64, 32, 8, 4),
        "prefill bytes": _tile(128, 128, 64, 8, 4),
        "prefill wide": _tile(128, 128, 64, 8, 4),
        "prefill wide 32": _tile(128, 64, 32, 8, 4),
    },
    "mfma": {
        "skinny bytes": _tile(16, 64, 128, 4, 2),
        "skinny wide": _tile(16, 64, 128, 4, 2),
        "prefill bytes": _tile(128, 128, 64, 8, 2),
        "prefill wide": _tile(128, 128, 64, 8, 2),
    },
    "wmma": {
        "skinny bytes": _tile(16, 64, 64, 4, 2),
        "skinny wide": _tile(16, 64, 64, 4, 2),
        "prefill bytes": _tile(64, 64, 32, 4, 2),
        "prefill wide": _tile(64, 64, 32, 4, 2),
    },
}


def tile_for(unit: str, num_rows: int, operand: str, block: int) -> Tile:
    """The tile of a product with `num_rows` rows. A step never crosses a scale block.

    A device without a row for e4m3 products (no card, the interpreter) takes that for bytes.
    """
    phase = "skinny" if num_rows <= SKINNY_ROWS else "prefill"
    rows = TILES[unit]
    fallback = rows.get(f"{phase} {operand}", rows[f"{phase} bytes"])
    tile = rows.get(f"{phase} {operand} {block}", fallback)
    return _tile(tile.rows, tile.columns, min(tile.depth, block), tile.num_warps, tile.num_stages)


def split_count(tile: Tile, num_rows: int, num_columns: int, depth: int) -> int:
    """Pieces of K that are summed apart: for skinny products only, a power of two up to 8."""
    if num_rows > SKINNY_ROWS:
        return 1
    programs = -(-num_rows // tile.rows) * -(-num_columns // tile.columns)
    splits = 1
    while splits < 8:
        splits *= 2
        if programs * splits > _ENOUGH_PROGRAMS or depth // splits < _MIN_SPLIT_DEPTH:
            return splits // 2
    return splits
