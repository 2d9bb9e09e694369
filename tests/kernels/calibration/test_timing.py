"""Times of short pieces: the undisturbed ones, and how far they lie apart."""

import time

import pytest

from kernels.calibration.timing import quiet_median_s, spread_of


def work():
    """About a millisecond of computing."""
    return sum(range(50_000))


def test_what_precedes_a_run_happens_each_time_and_is_not_timed():
    events = []

    def before():
        events.append("before")
        time.sleep(0.05)

    def run():
        events.append("run")
        work()

    took_s = quiet_median_s(run, 3, before=before)
    first, *rest = events
    assert first == "run"
    assert rest[::2] == ["before"] * (len(rest) // 2)
    assert rest[1::2] == ["run"] * (len(rest) // 2)
    assert took_s < 0.05


def test_runs_that_left_the_core_do_not_count():
    """Every other run sleeps, as if another program had the core for a while."""
    naps = iter([0, *[0, 0.02] * 1000])

    def run():
        time.sleep(next(naps))
        work()

    assert quiet_median_s(run, 3, limit_s=0.5) < 0.02


@pytest.mark.parametrize(
    ("times_s", "spread"),
    [
        ([], 0.0),
        ([2.0], 0.0),
        ([1.0, 2.0, 3.0], 1.0),
        ([2.0, 2.0, 9.0, 1.0], 0.0),
        ([1.0, 1.9, 2.0, 2.1, 9.0], 0.1),
    ],
)
def test_one_run_on_either_side_is_no_spread(times_s, spread):
    assert spread_of(times_s) == pytest.approx(spread)
