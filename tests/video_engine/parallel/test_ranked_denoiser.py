"""Losses within a forward: computed again from the same inputs, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from kernels.collectives.errors import RankLost
from video_engine.parallel.command import ForwardCommand
from video_engine.parallel.ranked_denoiser import RankedDenoiser


class Forward:
    """A rank 0 whose exchanges fail as told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.num_rejoined = 0

    def lead(self, command: ForwardCommand, shared: Any, branches: Any) -> list[Any]:
        if self.errors:
            raise self.errors.pop(0)
        return [(shared["x"] + 1,) for _ in branches]

    def rejoin(self) -> None:
        self.num_rejoined += 1

    def close(self) -> None: ...


class Ranks:
    """Remembers what it was told."""

    communicator: Any = None
    is_broken = False

    def __init__(self) -> None:
        self.expected: list[float | None] = []
        self.windows: list[float] = []
        self.renewed: list[BaseException | None] = []

    def send(self, data: bytes) -> None:
        assert ForwardCommand.decode(data).part == "t"

    def expect(self, duration_s: float | None) -> None:
        self.expected.append(duration_s)

    def window(self, bound_s: float) -> AbstractContextManager[None]:
        self.windows.append(bound_s)
        return nullcontext()

    def renew(self, rejoin: Callable[[], None], error: BaseException | None = None) -> None:
        self.renewed.append(error)
        self.is_broken = False
        rejoin()


def call(denoiser: RankedDenoiser, size: int = 2) -> torch.Tensor:
    return denoiser("t", {"x": torch.zeros(size)}, [{}])[0][0]


def test_a_forward_in_which_ranks_are_lost_is_computed_again() -> None:
    lost = RankLost("rank 1 is gone", (1,))
    forward, ranks = Forward(lost), Ranks()
    assert torch.equal(call(RankedDenoiser(forward, ranks)), torch.ones(2))
    assert ranks.renewed == [lost]
    assert forward.num_rejoined == 1


def test_ranks_lost_in_every_try_end_the_job_with_ranks_that_work() -> None:
    forward, ranks = Forward(*[RankLost(f"{n}", (1,)) for n in range(3)]), Ranks()
    denoiser = RankedDenoiser(forward, ranks)
    with pytest.raises(RankLost, match="2"):
        call(denoiser)
    assert len(ranks.renewed) == 3
    assert torch.equal(call(denoiser), torch.ones(2))


def test_an_error_of_rank_0_s_own_frees_the_others_and_is_raised() -> None:
    error = MemoryError("too large")
    forward, ranks = Forward(error), Ranks()
    denoiser = RankedDenoiser(forward, ranks)
    with pytest.raises(MemoryError):
        call(denoiser)
    assert ranks.renewed == [error]
    assert torch.equal(call(denoiser), torch.ones(2))


def test_a_shape_is_predicted_by_its_last_forward_and_new_ranks_by_none() -> None:
    forward, ranks = Forward(), Ranks()
    denoiser = RankedDenoiser(forward, ranks)
    for size in (2, 2, 3, 3):
        call(denoiser, size)
    assert [seconds is None for seconds in ranks.expected] == [True, False, True, False]
    assert len(ranks.windows) == 2
    forward.errors.append(RankLost("gone", (1,)))
    call(denoiser, 3)
    assert [seconds is None for seconds in ranks.expected[-2:]] == [False, True]


def test_idle_ranks_are_brought_back_once() -> None:
    forward, ranks = Forward(), Ranks()
    denoiser = RankedDenoiser(forward, ranks)
    denoiser.tend()
    assert ranks.renewed == []
    ranks.is_broken = True
    denoiser.tend()
    denoiser.tend()
    assert ranks.renewed == [None]
    assert forward.num_rejoined == 1
