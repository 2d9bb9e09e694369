"""Tiles of the sparse attentions by matrix unit: what launchers and builds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One program's share: `heads` of a token against `keys` rows at a time, sliced by columns."""

    heads: int
    keys: int
    num_warps: int = 8
    num_stages: int = 1
    slice_width: int = 64


# Found by compiling offline at 512 columns: the largest without spills. The products are batched,
# a slice of the columns for each warp, which wgmma and tcgen05 do not do: the compiler takes
# mma.sync there.
TILES: Mapping[str, Tile] = {
    "mma.sync": Tile(heads=32, keys=16),
    "wgmma": Tile(heads=32, keys=16),
    "tcgen05": Tile(heads=32, keys=16),
    "mfma": Tile(heads=32, keys=16),
    "wmma": Tile(heads=16, keys=16, num_warps=16, slice_width=32),
}
# For a unit without a row of its own.
DEFAULT_TILE = Tile(heads=16, keys=16)
# Entries of an index that are looked at together for its end.
CHUNK = 1024
# Where the tail of a row is: nowhere; in the key alone; the last columns of key and value.
TAIL_CODES: Mapping[str, int] = {"none": 0, "apart": 1, "inside": 2}


def choose_tile(traits: DeviceTraits, num_heads: int, item_bytes: int) -> Tile:
    """The tile of the device's matrix unit; 16 heads where there are no more."""
    tile = TILES.get(traits.mma_family, DEFAULT_TILE) if item_bytes <= 2 else DEFAULT_TILE
    return tile if num_heads > 16 else replace(tile, heads=16)


def slices_of(width: int, group: int, most: int) -> tuple[int, int]:
    """How many slices a row has, a power of two, and their columns, within a group of scales."""
    slice_width = min(most, max(16, 1 << (width - 1).bit_length()), group or most)
    num_slices = -(-width // slice_width)
    return 1 << (num_slices - 1).bit_length(), slice_width


def row_constants(
    tile: Tile, num_values: int, num_tail: int, group: int, *, is_tail_value: bool
) -> dict[str, int]:
    """What the kernel knows of a row when it is compiled."""
    sliced = num_values + num_tail if is_tail_value else num_values
    num_slices, slice_width = slices_of(sliced, group, tile.slice_width)
    tail = "none" if num_tail == 0 else "inside" if is_tail_value else "apart"
    return {
        "N": num_values,
        "R": num_tail,
        "SLICES": num_slices,
        "SLICE": slice_width,
        "TAIL_SLICE": max(16, (1 << (num_tail - 1).bit_length()) // num_slices) if num_tail else 16,
        "GROUP": group,
        "TAIL": TAIL_CODES[tail],
    }


def num_splits(num_programs: int, num_tiles: int, num_processors: int) -> int:
    """Parts of a token's rows in decoding: enough programs for the device twice over."""
    wanted = -(-2 * num_processors // max(num_programs, 1))
    return max(1, min(wanted, num_tiles, 32))
