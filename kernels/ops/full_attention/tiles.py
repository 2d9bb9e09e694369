"""Tiles of the attention kernels by matrix unit and head dim: what launchers and builds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One program's share: `rows` query rows against `keys` keys at a time.

    With `parts` above 1 a program makes one part of the output's columns and computes the scores
    for it anew: (1 + 1/parts) / 2 of the work in each of `parts` programs.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    parts: int = 1


def tile(rows: int, keys: int, num_warps: int, num_stages: int, parts: int = 1) -> Tile:
    """A row of a table of tiles."""
    return Tile(rows=rows, keys=keys, num_warps=num_warps, num_stages=num_stages, parts=parts)


# Matrix unit of each family that is compiled offline; a test holds it against the traits.
MATRIX_UNITS: Mapping[str, str] = {
    "sm_80": "mma.sync",
    "sm_86": "mma.sync",
    "sm_89": "mma.sync",
    "sm_90": "wgmma",
    "sm_100": "tcgen05",
    "sm_120": "mma.sync",
    "gfx942": "mfma",
    "gfx1100": "wmma",
}

Table = Mapping[str, Mapping[int, Tile]]


def block_dim(head_dim: int) -> int:
    """Columns of a tile: the head dim padded to a power of two of at least 16."""
    return max(16, 1 << (head_dim - 1).bit_length())


# A product of float32 runs without matrix units and holds its operands in registers.
FLOAT32_TILES = {128: tile(32, 32, 4, 1), 256: tile(32, 32, 4, 1, parts=2)}
# For a unit without a row of its own.
DEFAULT_TILES = {128: tile(64, 32, 4, 1), 256: tile(32, 32, 4, 1, parts=2)}


def choose_tile(table: Table, traits: DeviceTraits, head_dim: int, item_bytes: int) -> Tile:
    """The tile of the smallest listed head dim that holds `head_dim`.

    Raises:
        KeyError: the head dim is above 256, which the spec's requirement refuses.
    """
    of_unit = table.get(traits.mma_family, DEFAULT_TILES) if item_bytes <= 2 else FLOAT32_TILES
    for listed in sorted(of_unit):
        if listed >= head_dim:
            return of_unit[listed]
    raise KeyError(f"no tile of {traits.mma_family} for a head dim of {head_dim}")


def families_of(unit: str) -> tuple[str, ...]:
    """Families compiled offline that have this matrix unit."""
    return tuple(family for family, its in MATRIX_UNITS.items() if its == unit)


def skipped_outside(unit: str) -> dict[str, str]:
    """For a build of one unit: why the other families do not take it."""
    kept = families_of(unit)
    return {
        family: f"takes the tile of {its}, not that of {unit}"
        for family, its in MATRIX_UNITS.items()
        if family not in kept
    }


# Of full attention, by matrix unit and head dim: the largest found by compiling offline that
# neither spill nor outgrow the family's shared memory.
TILES: Table = {
    "mma.sync": {
        64: tile(128, 64, 8, 3),
        128: tile(128, 32, 8, 3),
        256: tile(128, 16, 8, 2, parts=2),
    },
    "wgmma": {64: tile(128, 128, 8, 3), 128: tile(128, 64, 8, 3), 256: tile(128, 32, 8, 2)},
    "tcgen05": {
        64: tile(128, 128, 8, 3),
        128: tile(128, 64, 8, 3),
        256: tile(128, 64, 8, 2, parts=2),
    },
    "mfma": {64: tile(128, 64, 4, 2), 128: tile(128, 64, 4, 1), 256: tile(64, 32, 8, 1)},
    "wmma": {
        64: tile(128, 32, 8, 1),
        128: tile(64, 32, 8, 1),
        256: tile(64, 16, 8, 1, parts=4),
    },
}
