"""Who has stalled, in virtual time: the bound, the one to blame, and nobody without reason."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.ranks.heartbeat import Beat, Phase
from workers.ranks.watch import Limits, Sight, StallWatch

LIMITS = Limits()


def beat(rank, phase=Phase.STEPPING, begun=7, done=6, progress_ns=0):
    return Beat(
        rank=rank, pid=100 + rank, started=1, epoch=2, phase=phase, begun=begun, done=done,
        progress_ns=progress_ns, text="",
    )  # fmt: skip


def run(beats, exchanges, *, for_s, step_s=0.05, num_sent=7, change=lambda s, t: s, **more):
    """The first verdict and when it fell, if the ranks stay as they are."""
    watch = StallWatch(LIMITS)
    now_s = 0.0
    while now_s < for_s:
        sight = Sight(now_s=now_s, beats=beats, exchanges=exchanges, num_sent=num_sent, **more)
        verdict = watch.look(change(sight, now_s))
        if verdict:
            return verdict, now_s
        now_s += step_s
    return None, now_s


@given(expected_s=st.floats(0.001, 3.0))
def test_a_frozen_rank_stalls_at_its_bound(expected_s):
    verdict, after_s = run([beat(0), beat(1)], [4, 4], for_s=60, expected_s=expected_s)
    bound_s = max(5 * expected_s, 2.0)
    assert verdict.rank == 1
    assert bound_s < after_s <= bound_s + 0.2
    assert verdict.bound_s == bound_s
    assert "carrying out command 7, at exchange 4" in str(verdict)


def test_without_a_prediction_and_in_a_window_the_bounds_are_their_own():
    assert run([beat(0), beat(1)], [4, 4], for_s=59)[0] is None
    assert run([beat(0), beat(1)], [4, 4], for_s=61)[0].bound_s == LIMITS.unpredicted_s
    more = {"expected_s": 0.1, "window_s": 8.0}
    assert run([beat(0), beat(1)], [4, 4], for_s=7.9, **more)[0] is None
    assert run([beat(0), beat(1)], [4, 4], for_s=9, **more)[0].bound_s == 8.0


@pytest.mark.parametrize(
    ("exchanges", "blamed"), [([5, 5, 4], 2), ([5, 4, 5], 1), ([4, 5, 5], 0), ([5, 5, 5], 1)]
)
def test_the_one_behind_is_to_blame(exchanges, blamed):
    beats = [beat(0), beat(1), beat(2)]
    assert run(beats, exchanges, for_s=5, expected_s=0.01)[0].rank == blamed


def test_one_that_has_not_begun_is_to_blame_whatever_the_exchanges_say():
    beats = [beat(0), beat(1), beat(2, phase=Phase.IDLE, begun=6)]
    verdict, _ = run(beats, [3, 4, 4], for_s=5, expected_s=0.01)
    assert verdict.rank == 2
    assert "due to begin command 7 of 7" in str(verdict)


@pytest.mark.parametrize("moving", ["exchanges", "beats"])
def test_a_slow_rank_that_moves_is_left_alone(moving):
    def change(sight, now_s):
        turn = int(now_s)
        if moving == "exchanges":
            return replace(sight, exchanges=[turn, turn])
        return replace(sight, beats=[beat(0), beat(1, begun=7 + turn)])

    assert run([beat(0), beat(1)], [0, 0], for_s=30, expected_s=0.1, change=change)[0] is None


def test_an_idle_rank_is_held_to_its_beats_and_to_nothing_else():
    def touching(sight, now_s):
        idle = beat(1, phase=Phase.IDLE, begun=7, done=7, progress_ns=int(now_s * 4))
        return replace(sight, beats=[beat(0), idle])

    assert run([], [9, 9], for_s=30, expected_s=0.01, change=touching)[0] is None
    idle = beat(1, phase=Phase.IDLE, begun=7, done=7)
    verdict, after_s = run([beat(0), idle], [9, 9], for_s=30, expected_s=0.01)
    assert LIMITS.idle_s < after_s < LIMITS.idle_s + 0.2
    assert verdict.expected_s is None
    assert "waiting for commands, 7 done" in str(verdict)


@pytest.mark.parametrize(
    ("phase", "bound_s"),
    [(Phase.ABSENT, LIMITS.arrive_s), (Phase.ARRIVED, LIMITS.arrive_s),
     (Phase.LOADING, LIMITS.load_s)],
)  # fmt: skip
def test_starting_has_bounds_of_its_own(phase, bound_s):
    beats = [beat(0), beat(1, phase=phase, begun=0, done=0)]
    _, after_s = run(beats, [0, 0], for_s=bound_s + 2, step_s=0.25, num_sent=0)
    assert bound_s < after_s < bound_s + 1


def test_a_watcher_that_was_held_up_blames_nobody_for_it():
    watch = StallWatch(LIMITS)
    beats = [beat(0), beat(1)]
    for now_s in (0.0, 100.0, 200.0, 300.0):
        sight = Sight(now_s=now_s, beats=beats, exchanges=[4, 4], num_sent=7, expected_s=0.01)
        assert watch.look(sight) is None
    assert watch.frozen_s(1) == pytest.approx(3 * LIMITS.look_gap_s)


def test_a_command_that_arrives_starts_the_clock():
    def change(sight, now_s):
        is_sent = now_s > 1.9
        idle = beat(1, phase=Phase.IDLE, begun=7, done=7)
        return replace(sight, beats=[beat(0), idle], num_sent=8 if is_sent else 7)

    _, after_s = run([], [4, 4], for_s=30, expected_s=0.01, change=change)
    assert after_s > 3.8
