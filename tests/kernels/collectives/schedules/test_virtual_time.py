"""Schedules in virtual time: exact critical paths, and what the patterns hide."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.collectives.costs import LinkCosts
from kernels.collectives.schedules import builders
from kernels.collectives.schedules.gate import Overlap, best_bound
from kernels.collectives.schedules.graph import Node, Schedule, ScheduleError
from kernels.collectives.schedules.virtual_time import link_time, simulate

BYTES_A_SECOND = LinkCosts(latency_s=0.0, ring_bytes_s=1.0, fan_bytes_s=1.0)


def seconds(schedule, costs=BYTES_A_SECOND):
    return simulate(schedule, link_time(costs)).duration_s


def layers(count, compute_s, wire_s):
    work = builders.LayerWork(
        attention_s=compute_s / 2, mlp_s=compute_s / 2, wire_bytes=round(wire_s / 2)
    )
    return [work] * count


def test_blocking_layers_take_the_sum():
    assert seconds(builders.blocking_layers(2, layers(3, 40, 60))) == 3 * 100


@given(
    count=st.integers(1, 5),
    size=st.integers(2, 4),
    compute_s=st.sampled_from([8, 40, 80, 400]),
    wire_s=st.sampled_from([8, 40, 80, 400]),
)
@settings(max_examples=40, deadline=None)
def test_two_chunks_hide_all_but_the_ends(count, size, compute_s, wire_s):
    work = layers(count, compute_s, wire_s)
    serial_s = seconds(builders.blocking_layers(size, work))
    for build in (builders.token_split, builders.micro_batches):
        took_s = seconds(build(size, work))
        longer_s, shorter_s = max(compute_s, wire_s), min(compute_s, wire_s)
        exposed_s = min(compute_s / 4, wire_s / 4)
        assert took_s == pytest.approx(count * longer_s + exposed_s)
        assert serial_s / took_s <= best_bound(compute_s, wire_s)
        assert shorter_s >= exposed_s


def test_the_critical_path_leaves_no_gap():
    timeline = simulate(builders.token_split(2, layers(4, 30, 50)), link_time(BYTES_A_SECOND))
    path = timeline.critical_path
    assert path[0].begin_s == 0
    assert path[-1].end_s == timeline.duration_s
    assert all(a.end_s == b.begin_s for a, b in itertools.pairwise(path))


def test_exposed_is_what_no_computation_covers():
    timeline = simulate(builders.token_split(2, layers(2, 40, 40)), link_time(BYTES_A_SECOND))
    assert timeline.busy_s(0) == 80
    assert timeline.exposed_s(0) == timeline.duration_s - 80


def test_ring_attention_hides_passes_under_blocks():
    assert seconds(builders.ring_attention(4, block_s=10, block_bytes=8)) == 40
    assert seconds(builders.ring_attention(4, block_s=10, block_bytes=15)) == 3 * 15 + 10


def test_ring_attention_waits_for_a_free_buffer():
    schedule = builders.ring_attention(4, block_s=10, block_bytes=1)
    timeline = simulate(schedule, link_time(BYTES_A_SECOND))
    assert timeline.span(0, "pass.2").begin_s >= timeline.span(0, "attend.0").end_s


def test_head_groups_use_both_directions():
    alone_s = seconds(builders.head_groups(2, 1, attend_s=80, in_bytes=80, out_bytes=80))
    grouped_s = seconds(builders.head_groups(2, 8, attend_s=80, in_bytes=80, out_bytes=80))
    assert alone_s == 240
    assert grouped_s == 10 + 80 + 10


def test_split_product_hides_all_but_a_chunk():
    assert seconds(builders.split_gemm(2, gemm_s=80, wire_bytes=80, num_chunks=8)) == 90


def test_a_split_product_of_gathered_rows_hides_all_but_the_ends():
    """The first chunk arrives and the last returns alone; between, the wire never waits."""
    split = builders.split_gemm(2, gemm_s=80, wire_bytes=40, num_chunks=8, gather_bytes=40)
    assert seconds(split) == 5 + 80 + 5
    bound = builders.split_gemm(2, gemm_s=8, wire_bytes=40, num_chunks=8, gather_bytes=40)
    assert seconds(bound) == 80


def test_shared_expert_hides_the_dispatch():
    assert seconds(builders.expert_dispatch(2, 30, 20, shared_s=25, routed_s=50)) == 30 + 50 + 20


def test_a_pipeline_fills_and_drains():
    took_s = seconds(builders.pipeline([[10] * 4] * 3, chunk_bytes=[2] * 4))
    assert took_s == 3 * 10 + 2 * 2 + 3 * 10


def test_transfers_of_one_resource_wait_for_each_other_in_the_order_of_their_readiness():
    nodes = [
        Node(name="slow", rank=0, stream="compute", kind="compute", duration_s=5),
        Node(name="late", rank=0, stream="a", kind="collective", size_bytes=4, after=("slow",)),
        Node(name="early", rank=0, stream="b", kind="collective", size_bytes=7),
    ]
    timeline = simulate(Schedule(name="shared", nodes=tuple(nodes)), link_time(BYTES_A_SECOND))
    assert timeline.span(0, "early").begin_s == 0
    assert timeline.span(0, "late").begin_s == 7
    assert timeline.span(0, "late").bound_by == (0, "early")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Node(name="a", rank=0, stream="s", kind="compute", after=("b",))], "no such node"),
        (
            [
                Node(name="a", rank=0, stream="s", kind="compute", after=("b",)),
                Node(name="b", rank=0, stream="t", kind="compute", after=("a",)),
            ],
            "circle",
        ),
        ([Node(name="a", rank=0, stream="s", kind="compute")] * 2, "share a name"),
        ([Node(name="a", rank=0, stream="s", kind="send", peer=1)], "no counterpart"),
        (
            [
                Node(name="a", rank=0, stream="s", kind="collective"),
                Node(name="c", rank=1, stream="s", kind="compute"),
            ],
            "not on every rank",
        ),
        (
            [
                Node(name="a", rank=0, stream="s", kind="collective"),
                Node(name="b", rank=0, stream="s", kind="collective"),
                Node(name="b", rank=1, stream="s", kind="collective"),
                Node(name="a", rank=1, stream="s", kind="collective"),
            ],
            "different orders",
        ),
    ],
)
def test_a_schedule_that_cannot_run_is_refused(nodes, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule(name="wrong", nodes=tuple(nodes))


def test_overlap_turns_itself_off_below_its_break_even():
    step = {"compute_s": 0.1, "wire_s": 0.08, "num_chunks": 2, "latency_s": 1e-4}
    on, off = Overlap(penalty=0.1, **step), Overlap(penalty=0.5, **step)
    assert on.pays
    assert on.decision("prefill").chosen == "on, 2 chunks"
    assert not off.pays
    assert off.decision("prefill").chosen == "off"
    assert "costs 50.20 ms" in off.decision("prefill").reasons[0]
    edge = Overlap(penalty=0.398, **step)
    assert edge.gain_s == pytest.approx(edge.loss_s)
    assert on.predicted_s == pytest.approx(0.18 - 0.04 + 0.0102)
