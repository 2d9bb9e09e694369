"""Where a rank is in a layout, and what its share is: tokens, heads, branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self, TypeVar

from video_engine.parallel.layout import VideoLayout

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's coordinates; the ranks that share tokens are neighbours."""

    cfg: int
    ulysses: int

    @classmethod
    def of(cls, layout: VideoLayout, rank: int) -> Self:
        """The place of a rank."""
        return cls(*divmod(rank, layout.ulysses))


def sequence_ranks(layout: VideoLayout, rank: int) -> tuple[int, ...]:
    """The ranks that share the tokens of this one's branches, itself included, in order."""
    first = rank - rank % layout.ulysses
    return tuple(range(first, first + layout.ulysses))


def runs(count: int, num_pieces: int) -> tuple[range, ...]:
    """Nearly equal runs of `count` things; the first ones take what does not divide."""
    whole, rest = divmod(count, num_pieces)
    ends = list(accumulate(whole + (index < rest) for index in range(num_pieces)))
    return tuple(range(begin, end) for begin, end in zip([0, *ends], ends, strict=False))


def head_runs(num_heads: int, num_ranks: int, num_groups: int) -> tuple[tuple[range, ...], ...]:
    """The heads that each rank attends with, by group: runs[group][rank].

    A rank's heads are one run, which its groups cut; where heads do not divide, some ranks have
    one more, and the last groups of the others may be empty.
    """
    shares = runs(num_heads, num_ranks)
    cuts = [runs(len(share), num_groups) for share in shares]
    return tuple(
        tuple(
            range(share.start + cut[group].start, share.start + cut[group].stop)
            for share, cut in zip(shares, cuts, strict=True)
        )
        for group in range(num_groups)
    )


def own_branches(branches: Sequence[T], layout: VideoLayout, cfg: int) -> Sequence[T]:
    """The branches that the ranks at `cfg` compute: none where guidance is off."""
    return branches[cfg :: layout.cfg]
