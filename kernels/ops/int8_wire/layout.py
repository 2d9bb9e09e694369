"""What a payload holds: pieces of a tensor, one after the other, in blocks of 128 values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.errors import ShapeError

if TYPE_CHECKING:
    import torch

BLOCK = 128
# A block on the wire: its values, and their scale as float32.
BLOCK_BYTES = BLOCK + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A tensor of `shape` cut along `axis` into pieces of `sizes`, each encoded by itself.

    Invariants: sizes sum to the axis; a piece begins a block, its last one is padded with zeros;
    all pieces lie one after the other, as an all-to-all sends and receives them.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    axis: int
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.shape):
            raise ShapeError(f"axis {self.axis} is not one of the {len(self.shape)} of the tensor")
        if sum(self.sizes) != self.shape[self.axis] or min(self.sizes, default=0) < 0:
            raise ShapeError(
                f"pieces of {self.sizes} do not fill axis {self.axis} of {self.shape[self.axis]}"
            )

    @property
    def num_outer(self) -> int:
        """Runs of neighbouring values of a piece: the product of the axes before."""
        return math.prod(self.shape[: self.axis])

    @property
    def num_inner(self) -> int:
        """Values for each entry of the axis: the product of the axes after."""
        return math.prod(self.shape[self.axis + 1 :])

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks of each piece; times BLOCK_BYTES, what an all-to-all splits by."""
        per_entry = self.num_outer * self.num_inner
        return tuple(-(-size * per_entry // BLOCK) for size in self.sizes)

    @property
    def num_blocks(self) -> int:
        """Blocks of the payload."""
        return sum(self.blocks)

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """Neighbouring pieces of one size: first entry, first block, how many, their size."""
        entry, block, at = 0, 0, 0
        while at < len(self.sizes):
            size, count = self.sizes[at], 1
            while at + count < len(self.sizes) and self.sizes[at + count] == size:
                count += 1
            yield entry, block, count, size
            entry, block = entry + count * size, block + count * self.blocks[at]
            at += count
