"""Measured durations in schedules, and the schedule of shared-out rows."""

import itertools
import time

import pytest

from kernels.collectives.costs import LinkCosts
from kernels.collectives.schedules import builders, row_builders
from kernels.collectives.schedules.graph import Node, Schedule, ScheduleError
from kernels.collectives.schedules.measured import core_seconds, duration_s, with_durations
from kernels.collectives.schedules.threads import Ran, run_serially
from kernels.collectives.schedules.virtual_time import link_time, simulate

COSTS = LinkCosts(latency_s=0.0, ring_bytes_s=100.0, fan_bytes_s=100.0)
WORK = row_builders.ContextWork(project_s=1.0, attend_s=3.0, wire_bytes=100)


def test_a_schedule_with_its_own_durations_takes_as_long():
    work = builders.LayerWork(attention_s=2.0, mlp_s=3.0, wire_bytes=100)
    schedule = builders.token_split(2, [work] * 3)
    seconds = {n.place: n.duration_s for n in schedule.nodes if n.kind == "compute"}
    bare = builders.token_split(
        2, [builders.LayerWork(attention_s=0.0, mlp_s=0.0, wire_bytes=100)] * 3
    )
    expected = simulate(schedule, link_time(COSTS))
    assert simulate(with_durations(bare, seconds), link_time(COSTS)) == expected


def test_the_slower_rank_is_waited_for():
    schedule = builders.blocking_layers(
        2, [builders.LayerWork(attention_s=0.0, mlp_s=0.0, wire_bytes=100)]
    )
    seconds = {n.place: 1.0 + n.rank for n in schedule.nodes if n.kind == "compute"}
    timeline = simulate(with_durations(schedule, seconds), link_time(COSTS))
    assert timeline.duration_s == pytest.approx(2 * (2.0 + 1.0))


def test_a_computation_that_was_not_measured_is_named():
    schedule = builders.blocking_layers(
        1, [builders.LayerWork(attention_s=0.0, mlp_s=0.0, wire_bytes=1)]
    )
    with pytest.raises(ScheduleError, match=r"attention\.0\.0"):
        with_durations(schedule, {(0, "mlp.0.0"): 1.0})


def test_a_node_that_waits_takes_time_and_no_core():
    """What else keeps a thread from its core is in the clock's seconds alone."""
    nodes = [Node(name=name, rank=0, stream="s", kind="compute") for name in ("works", "sleeps")]
    schedule = Schedule(name="two", nodes=tuple(nodes))
    actions = {"works": lambda: sum(range(300_000)), "sleeps": lambda: time.sleep(0.02)}
    ran = run_serially(schedule, 0, actions)
    core_s = core_seconds(ran)
    assert duration_s(ran) >= 0.02
    assert core_s["sleeps"] < core_s["works"] <= ran[0].end_s - ran[0].begin_s + 1e-3


def test_transfers_are_no_computation():
    nodes = [Node(name=kind, rank=0, stream="s", kind=kind) for kind in ("compute", "collective")]
    ran = [Ran(node=node, begin_s=0.0, end_s=1.0, core_s=0.5) for node in nodes]
    assert core_seconds(ran) == {"compute": 0.5}


def test_gathers_hide_under_the_other_chunk():
    """Projections and attention of two chunks and three layers; all but the first gather hides."""
    schedule = row_builders.context_split(2, [[WORK] * 2] * 3)
    timeline = simulate(schedule, link_time(COSTS))
    assert timeline.busy_s(0) == pytest.approx(3 * 2 * 4.0)
    assert timeline.duration_s == pytest.approx(3 * 2 * 4.0)
    assert timeline.span(0, "gather.1.0").begin_s < timeline.span(0, "attend.0.1").end_s


def test_one_chunk_of_rows_hides_nothing():
    schedule = row_builders.context_split(2, [[WORK]] * 3)
    assert simulate(schedule, link_time(COSTS)).duration_s == pytest.approx(3 * (4.0 + 1.0))


def test_a_chunk_attends_after_its_own_gather_and_those_before_it():
    schedule = row_builders.context_split(2, [[WORK] * 3] * 2)
    places = {name: i for i, (rank, name) in enumerate(schedule.order) if rank == 0}
    for layer in range(2):
        for chunk in range(3):
            for earlier in range(chunk + 1):
                assert places[f"gather.{layer}.{earlier}"] < places[f"attend.{layer}.{chunk}"]


def test_heads_travel_under_the_other_chunk():
    """One chunk has every exchange in full; of two, only what surrounds the first layer shows."""
    work = row_builders.HeadWork(
        project_s=1.0, attend_s=1.0, finish_s=2.0, go_bytes=100, back_bytes=100
    )
    times = {}
    for num_chunks in (1, 2):
        schedule = row_builders.head_split(2, [[work] * num_chunks] * 4)
        timeline = simulate(schedule, link_time(COSTS))
        assert timeline.busy_s(0) == pytest.approx(4 * num_chunks * 4.0)
        times[num_chunks] = timeline.exposed_s(0)
    assert times == {1: pytest.approx(4 * 2.0), 2: pytest.approx(0.0)}


def test_a_chunk_of_heads_attends_after_those_before_it():
    work = row_builders.HeadWork(
        project_s=1.0, attend_s=1.0, finish_s=1.0, go_bytes=1, back_bytes=1
    )
    schedule = row_builders.head_split(2, [[work] * 3] * 2)
    places = {name: i for i, (rank, name) in enumerate(schedule.order) if rank == 0}
    for layer in range(2):
        names = [f"attend.{layer}.{chunk}" for chunk in range(3)]
        assert sorted(names, key=places.__getitem__) == names


def test_a_serial_run_says_when_its_nodes_ran():
    schedule = row_builders.context_split(1, [[WORK] * 2])
    done = []
    actions = {n.name: (lambda name=n.name: done.append(name)) for n in schedule.nodes}
    ran = run_serially(schedule, 0, actions)
    assert [r.node.name for r in ran] == done
    assert all(a.end_s <= b.begin_s for a, b in itertools.pairwise(ran))


def test_a_serial_run_raises_what_a_node_raised():
    schedule = row_builders.context_split(1, [[WORK]])

    def fail():
        raise ArithmeticError("no")

    actions = {n.name: fail for n in schedule.nodes}
    with pytest.raises(ArithmeticError):
        run_serially(schedule, 0, actions)
