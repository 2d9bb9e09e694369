"""Tiles of the indexer by matrix unit, and how much it scores at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTile:
    """One program's share: `lines` (tokens · heads) against `keys` keys at a time."""

    lines: int
    keys: int
    num_warps: int = 8
    num_stages: int = 2
    tokens: int = 1


# Found by compiling offline at 128 columns: the largest without spills.
TILES: Mapping[str, ScoreTile] = {
    "mma.sync": ScoreTile(lines=128, keys=64),
    "wgmma": ScoreTile(lines=128, keys=128),
    "tcgen05": ScoreTile(lines=128, keys=128),
    "mfma": ScoreTile(lines=128, keys=32, num_stages=1),
    "wmma": ScoreTile(lines=64, keys=32, num_stages=1),
}
# For a unit without a row of its own.
DEFAULT_TILE = ScoreTile(lines=64, keys=32, num_warps=4, num_stages=1)
# Scores that exist at a time.
SCRATCH_BYTES = 1 << 25
# Positions of a run, at least: selecting costs as much as reading the chosen ones again.
RUN = 8192
# Tiles of keys that a scoring program takes one after the other.
TILES_EACH = 8
# Scores that a selecting program reads at a time.
SELECT_TILE = 1024
SELECT_WARPS = 4


def score_tile(
    traits: DeviceTraits, num_heads: int, item_bytes: int, *, is_shared: bool
) -> ScoreTile:
    """The tile of the device's matrix unit; several tokens where they share their keys."""
    tile = TILES.get(traits.mma_family, DEFAULT_TILE) if item_bytes <= 2 else DEFAULT_TILE
    tokens = max(1, tile.lines // padded_heads(num_heads)) if is_shared else 1
    return ScoreTile(
        lines=tokens * padded_heads(num_heads),
        keys=tile.keys,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        tokens=tokens,
    )


def score_constants(tile: ScoreTile, width: int, num_heads: int) -> dict[str, int]:
    """What the scoring kernel knows of its shapes when it is compiled."""
    return {
        "D": width,
        "BLOCK_D": max(16, 1 << (width - 1).bit_length()),
        "HEADS": padded_heads(num_heads),
        "TOKENS": tile.tokens,
        "KEYS": tile.keys,
    }


def padded_heads(num_heads: int) -> int:
    """Heads of a token as rows of a product: a power of two, 16 or more."""
    return max(16, 1 << (num_heads - 1).bit_length())


def runs(num_tokens: int, num_positions: int, multiple: int) -> tuple[int, int]:
    """Tokens and positions that are scored at a time, the latter a multiple of `multiple`."""
    positions = max(RUN, SCRATCH_BYTES // (4 * num_tokens))
    positions = min(positions, num_positions)
    positions = max(1, -(-positions // multiple)) * multiple
    return max(1, min(num_tokens, SCRATCH_BYTES // (4 * positions))), positions
