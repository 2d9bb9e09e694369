"""Where a rank is in the grid of a layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from llm_engine.parallel.layout import Layout


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's coordinates; cp runs fastest, so that a tp share's ranks are neighbours."""

    pp: int
    dp: int
    replica: int
    tp: int
    cp: int

    @classmethod
    def of(cls, layout: Layout, rank: int) -> Self:
        """The place of a rank."""
        rest, cp = divmod(rank, layout.cp)
        rest, tp = divmod(rest, layout.tp)
        pp, rest = divmod(rest, layout.stage // layout.unit)
        dp, replica = divmod(rest, layout.stage // layout.width)
        if layout.pp < layout.fold:
            stage, within = divmod(tp, layout.tp // layout.fold)
            tp = within * layout.fold + stage
        return cls(pp, dp, replica, tp, cp)
