"""Rounds of measuring: more of them where they lie apart, and the share of other programs."""

import itertools
import os

import pytest

from kernels.calibration.calibrate import computing_rounds, others_share, processors
from kernels.calibration.crew import CrewFailed
from kernels.calibration.work import Work

STEADY, SHAKY = Work("add", (8, 8)), Work("add", (16, 8))


class Ranks:
    """Two ranks: what each work takes on rank 0 in turn; rank 1 takes a tenth less."""

    def __init__(self, **times):
        self.times = {work: itertools.cycle(times[name]) for work, name in NAMES.items()}
        self.asked = []

    def run(self, function, works):
        """As `Crew.run` of `measure_works`."""
        assert function.__name__ == "measure_works"
        self.asked.append(list(works))
        first = [next(self.times[work]) for work in works]
        return [first, [0.9 * took_s for took_s in first]]


NAMES = {STEADY: "steady", SHAKY: "shaky"}


def test_works_that_lie_apart_are_measured_again_and_the_others_are_not():
    ranks = Ranks(steady=[1.0, 1.01], shaky=[1.0, 2.0, 3.0])
    found = computing_rounds(ranks, [STEADY, SHAKY])
    assert len(found[STEADY]) == 4
    assert len(found[SHAKY]) == 12
    assert ranks.asked[:4] == [[STEADY, SHAKY]] * 4
    assert ranks.asked[4:] == [[SHAKY]] * 8


def test_the_slower_rank_counts():
    found = computing_rounds(Ranks(steady=[1.0], shaky=[2.0]), [STEADY, SHAKY])
    assert found == {STEADY: [1.0] * 4, SHAKY: [2.0] * 4}


def test_what_other_programs_used_is_what_these_did_not():
    cores = os.cpu_count()
    before, after = (10.0, 100.0, 5.0), (12.0, 100.0 + cores, 5.0 + cores / 2)
    assert others_share(before, after) == pytest.approx(0.25)
    assert others_share(before, (12.0, 100.0, 5.5)) == 0.0


def test_use_of_processors_is_asked_of_both_ranks():
    class Both:
        def run(self, function):
            return [(1.0, 2.0, 0.25), (1.1, 2.1, 0.5)]

    wall_s, busy_s, own_s = processors(Both())
    assert (wall_s, busy_s) == (1.0, 2.0)
    assert own_s >= 0.75


def test_a_rank_that_fails_ends_the_rounds():
    class Failing:
        def run(self, function, works):
            raise CrewFailed("rank 1 died during measure_works")

    with pytest.raises(CrewFailed, match="rank 1"):
        computing_rounds(Failing(), [STEADY])
