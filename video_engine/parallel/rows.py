"""A transformer over this rank's rows of a sequence: the seam between families and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from video_engine.parallel.place import runs


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Which rows of a sequence a rank has; `counts` are those of all ranks that share it."""

    counts: tuple[int, ...]
    run: range

    @property
    def slice(self) -> slice:
        """The rows as an index."""
        return slice(self.run.start, self.run.stop)

    @classmethod
    def of(cls, num_rows: int, num_ranks: int, rank: int) -> OwnRows:
        """Nearly equal runs; a sequence shorter than the ranks leaves some of them without."""
        pieces = runs(num_rows, num_ranks)
        return cls(tuple(len(piece) for piece in pieces), pieces[rank])


class RowModel(Protocol):
    """A transformer of which a rank computes some rows of the output.

    Invariant: what `whole` makes of the rows of all ranks is what the stock class returns, up to
    the rounding of products over fewer rows.
    """

    @property
    def width(self) -> int:
        """Values of a row."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of a row's values."""
        ...

    def num_rows(self, inputs: Mapping[str, torch.Tensor]) -> int:
        """The rows of all ranks together."""
        ...

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """This rank's rows; `inputs` are the stock class's own, whole on every rank.

        Shapes: result (rows of this rank, width). All ranks that share the sequence call at once.
        """
        ...

    def whole(
        self, rows: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """What the stock class returns, from the rows of all ranks."""
        ...
