"""The executor's threads under a virtual clock keep the simulator's times exactly."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.calibration.event_order import event_order_problem, out_of_order
from kernels.collectives.costs import LinkCosts
from kernels.collectives.schedules import builders
from kernels.collectives.schedules.threads import Ran
from kernels.collectives.schedules.virtual_time import Timeline, link_time, simulate

COSTS = LinkCosts(latency_s=1.0, ring_bytes_s=10.0, fan_bytes_s=10.0)
PATTERNS = {
    "blocking": lambda work, n: builders.blocking_layers(2, [work] * n),
    "token split": lambda work, n: builders.token_split(2, [work] * n),
    "micro-batches": lambda work, n: builders.micro_batches(2, [work] * n, 3),
    "experts": lambda work, n: builders.expert_dispatch(2, n, 3, work.attention_s, work.mlp_s),
    "ring": lambda work, n: builders.ring_attention(2, work.attention_s, work.wire_bytes),
    "head groups": lambda work, n: builders.head_groups(2, n, work.mlp_s, work.wire_bytes, n),
}


@given(
    pattern=st.sampled_from(sorted(PATTERNS)),
    count=st.integers(1, 3),
    attention_s=st.integers(0, 9),
    mlp_s=st.integers(0, 9),
    wire_bytes=st.integers(0, 90),
)
@settings(max_examples=40, deadline=None)
def test_begin_and_end_of_every_node_are_virtual_times(
    pattern, count, attention_s, mlp_s, wire_bytes
):
    work = builders.LayerWork(attention_s=attention_s, mlp_s=mlp_s, wire_bytes=wire_bytes)
    schedule = PATTERNS[pattern](work, count)
    timeline = simulate(schedule, link_time(COSTS))
    assert event_order_problem(schedule, timeline) == ""


def test_a_timeline_that_begins_a_node_late_is_named():
    work = builders.LayerWork(attention_s=1.0, mlp_s=1.0, wire_bytes=10)
    schedule = builders.token_split(2, [work])
    timeline = simulate(schedule, link_time(COSTS))
    late = [
        replace(s, begin_s=s.begin_s + 1, end_s=s.end_s + 1) if s.node.name == "mlp.0.1" else s
        for s in timeline.spans
    ]
    assert "mlp.0.1" in event_order_problem(schedule, Timeline(spans=tuple(late)))


@pytest.fixture
def real():
    """A run of rank 0 in real time, as virtual time has it."""
    work = builders.LayerWork(attention_s=1.0, mlp_s=1.0, wire_bytes=10)
    schedule = builders.blocking_layers(2, [work])
    timeline = simulate(schedule, link_time(COSTS))
    own = [s for s in timeline.spans if s.node.rank == 0]
    return schedule, timeline, [Ran(node=s.node, begin_s=s.begin_s, end_s=s.end_s) for s in own]


def test_a_real_run_in_order_passes(real):
    schedule, timeline, run = real
    assert out_of_order(schedule, 0, run, timeline) == ""


def test_a_node_that_began_too_early_is_named(real):
    schedule, timeline, run = real
    early = [replace(r, begin_s=0.0) if r.node.name == "mlp.0.0" else r for r in run]
    assert "mlp.0.0" in out_of_order(schedule, 0, early, timeline)


def test_a_node_that_did_not_run_is_noticed(real):
    schedule, timeline, run = real
    assert "ran 3 nodes of 4" in out_of_order(schedule, 0, run[1:], timeline)
