"""Virtual time with what computing and talking cost each other, by hand."""

import pytest

from kernels.calibration.in_steps import InSteps
from kernels.calibration.talking import link_s
from kernels.calibration.together import predict
from kernels.calibration.work import Fit
from kernels.collectives.schedules.graph import Node, on_all_ranks

RATE = 1e6


def schedule():
    """A collective of one second on the link beside a second of computing."""
    talk = Node(
        name="talk",
        rank=0,
        stream="wire",
        kind="collective",
        operation="all_reduce",
        size_bytes=1_000_000,
    )
    work = Node(name="work", rank=0, stream="compute", kind="compute", duration_s=1.0)
    return on_all_ranks("beside", 2, [talk, work])


def fits(start_s):
    return {"all_reduce": Fit(constants=(start_s, 0.0), error=0.0, num_samples=3)}


def test_the_link_of_two_ranks_carries_an_all_reduce_once():
    assert link_s("all_reduce", 1_000_000, RATE) == pytest.approx(1.0)
    assert link_s("all_gather", 1_000_000, RATE) == pytest.approx(0.5)
    assert link_s("all_to_all", 1_000_000, RATE) == pytest.approx(0.5)


def test_without_costs_both_take_as_long_as_alone(make_calibration):
    found = predict(schedule(), make_calibration(), RATE)
    assert found.duration_s == pytest.approx(1.0)


def test_computing_grows_by_what_one_collective_costs_it(make_calibration):
    made = make_calibration(computing_lost=fits(0.25))
    found = predict(schedule(), made, RATE)
    assert found.span(0, "work").end_s == pytest.approx(1.25, abs=1e-3)
    assert found.span(0, "talk").end_s == pytest.approx(1.0, abs=1e-3)


def test_a_collective_grows_by_what_computing_costs_it_for_as_long_as_they_overlap(
    make_calibration,
):
    """t = 1 + 0.5 / t, since computing covers a second of it: t = 1.366."""
    found = predict(schedule(), make_calibration(wire_busy=fits(0.5)), RATE)
    assert found.span(0, "talk").end_s == pytest.approx(1.366, abs=0.02)
    assert found.span(0, "work").end_s == pytest.approx(1.0)


def test_what_steps_take_beyond_their_parts_is_added(make_calibration):
    made = make_calibration(
        in_steps=InSteps(
            computing=Fit(constants=(1.5, 0.1, 0.2), error=0.0, num_samples=9),
            meeting=Fit(constants=(2.0, 0.25), error=0.0, num_samples=9),
        )
    )
    assert made.in_steps.computing_s(2.0, 3.0, num_nodes=2) == pytest.approx(3.7)
    found = predict(schedule(), made, RATE)
    assert found.span(0, "talk").end_s == pytest.approx(2.25)
