"""Schedules in real time: the order of virtual time, the numbers of a serial run."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.collectives.costs import LinkCosts
from kernels.collectives.schedules import builders, row_builders
from kernels.collectives.schedules.graph import ScheduleError
from kernels.collectives.schedules.threads import run_threads
from kernels.collectives.schedules.torch_streams import run_streams
from kernels.collectives.schedules.virtual_time import link_time, simulate

COSTS = LinkCosts(latency_s=0.0, ring_bytes_s=1e6, fan_bytes_s=1e6)
WORK = builders.LayerWork(attention_s=1e-4, mlp_s=1e-4, wire_bytes=100)
CONTEXT = row_builders.ContextWork(project_s=1e-4, attend_s=1e-4, wire_bytes=100)
HEADS = row_builders.HeadWork(
    project_s=1e-4, attend_s=1e-4, finish_s=1e-4, go_bytes=100, back_bytes=50
)
PATTERNS = {
    "blocking": lambda size, n: builders.blocking_layers(size, [WORK] * n),
    "token split": lambda size, n: builders.token_split(size, [WORK] * n),
    "micro-batches": lambda size, n: builders.micro_batches(size, [WORK] * n, 3),
    "split product": lambda size, n: builders.split_gemm(size, 1e-4, 100, n),
    "gathered product": lambda size, n: builders.split_gemm(size, 1e-4, 100, n, 100),
    "experts": lambda size, n: builders.expert_dispatch(size, 100, 100 * n, 1e-4, 1e-4),
    "ring": lambda size, n: builders.ring_attention(size + n, 1e-4, 100),
    "head groups": lambda size, n: builders.head_groups(size, n, 1e-4, 100, 100),
    "shared rows": lambda size, n: row_builders.context_split(size, [[CONTEXT] * 2] * n),
    "heads": lambda size, n: row_builders.head_split(size, [[HEADS] * 2] * n),
    "pipeline": lambda size, n: builders.pipeline([[1e-4] * n] * size, [100] * n),
}


def run_ranks(schedule, make_actions):
    """Every rank of a schedule as threads of this process; what ran, by rank."""

    def rank(number):
        return run_threads(schedule, number, make_actions(number))

    with ThreadPoolExecutor(len(schedule.ranks)) as threads:
        return dict(zip(schedule.ranks, threads.map(rank, schedule.ranks), strict=True))


def meeting_actions(schedule):
    """Nodes that do nothing but meet: a barrier for a collective, a flag for a message."""
    size = len(schedule.ranks)
    barriers = {name: threading.Barrier(size, timeout=20) for name in schedule.meetings}
    sent = {(n.rank, n.peer, n.tag): threading.Event() for n in schedule.nodes if n.kind == "send"}

    def action(node):
        if node.kind == "collective":
            return barriers[node.name].wait
        if node.kind == "send":
            return sent[node.rank, node.peer, node.tag].set
        if node.kind == "receive":
            return lambda: sent[node.peer, node.rank, node.tag].wait(20)
        return lambda: None

    return lambda rank: {n.name: action(n) for n in schedule.nodes if n.rank == rank}


@given(pattern=st.sampled_from(sorted(PATTERNS)), size=st.integers(2, 3), count=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_threads_keep_the_partial_order_of_virtual_time(pattern, size, count):
    schedule = PATTERNS[pattern](size, count)
    timeline = simulate(schedule, link_time(COSTS))
    ran = run_ranks(schedule, meeting_actions(schedule))
    real = {node_run.node.place: node_run for runs in ran.values() for node_run in runs}
    assert set(real) == {span.node.place for span in timeline.spans}
    for place, waits in schedule.before.items():
        for earlier in (e for e in waits if e[0] == place[0]):
            assert real[earlier].end_s <= real[place].begin_s
            virtual = timeline.span(*earlier).end_s, timeline.span(*place).begin_s
            assert virtual[0] <= virtual[1]
    for rank in schedule.ranks:
        for nodes in schedule.streams(rank).values():
            in_real = sorted((n.name for n in nodes), key=lambda m: real[rank, m].begin_s)
            in_virtual = sorted(
                (n.name for n in nodes), key=lambda m: timeline.span(rank, m).begin_s
            )
            assert in_real == in_virtual == [n.name for n in nodes]


def test_a_failing_node_stops_every_stream_and_is_named():
    schedule = builders.token_split(1, [WORK] * 3)
    actions = {node.name: lambda: None for node in schedule.nodes}

    def fail():
        raise RuntimeError("no such expert")

    with pytest.raises(RuntimeError, match="no such expert") as caught:
        run_threads(schedule, 0, actions | {"mlp.1.0": fail})
    assert "in node mlp.1.0 of schedule token split" in caught.value.__notes__


def test_a_node_without_action_is_refused():
    schedule = builders.token_split(1, [WORK])
    with pytest.raises(ScheduleError, match=r"without action \['attention.0.0'"):
        run_threads(schedule, 0, {})


def test_two_ranks_overlap_and_give_the_bits_of_the_serial_run(pair):
    first, second = pair.run("overlapped", num_layers=3, rows=64, width=32)
    assert first["is_equal"]
    assert second["is_equal"]
    assert first["order"] == second["order"]


def test_on_a_limited_link_the_wire_hides_under_computation(make_crew):
    crew = make_crew(rate_bytes_s=4e5, transports=("shm",)).start()
    for blocking, overlapped in crew.run("hidden", step_s=0.05, num_layers=3):
        assert blocking == 0
        assert overlapped > 0


class FakeDevice:
    """Streams and events that write down what is asked of them."""

    def __init__(self):
        self.log = []
        self.current = "outer"

    def Stream(self, device):  # noqa: N802 - torch's name
        lane = FakeStream(self, f"stream-{len(self.log)}")
        self.log.append(("made", lane.name))
        return lane

    def Event(self):  # noqa: N802 - torch's name
        return FakeEvent(self)

    def current_stream(self, device):
        return FakeStream(self, "outer")

    def stream(self, lane):
        return FakeScope(self, lane.name)


class FakeStream:
    def __init__(self, device, name):
        self.device, self.name = device, name

    def wait_stream(self, other):
        self.device.log.append(("wait stream", self.name, other.name))

    def wait_event(self, event):
        self.device.log.append(("wait event", self.name, event.after))


class FakeEvent:
    def __init__(self, device):
        self.device, self.after = device, None

    def record(self, lane):
        self.after = len([entry for entry in self.device.log if entry[0] == "run"])


class FakeScope:
    def __init__(self, device, name):
        self.device, self.name = device, name

    def __enter__(self):
        self.device.current = self.name

    def __exit__(self, *_):
        self.device.current = "outer"


def test_device_streams_are_issued_so_that_every_wait_is_on_an_event_already_recorded(monkeypatch):
    fake = FakeDevice()
    monkeypatch.setattr(torch, "get_device_module", lambda device: fake)
    schedule = builders.token_split(2, [WORK] * 2)
    own = [node for node in schedule.nodes if node.rank == 1]
    actions = {n.name: lambda n=n: fake.log.append(("run", fake.current, n.name)) for n in own}
    run_streams(schedule, 1, actions, torch.device("cpu"))
    runs = [entry for entry in fake.log if entry[0] == "run"]
    assert {name for _, _, name in runs} == {node.name for node in own}
    lanes = {entry[1] for entry in runs}
    assert len(lanes) == 2
    for lane in lanes:
        order = [name for _, where, name in runs if where == lane]
        kinds = {schedule.by_place[1, name].stream for name in order}
        assert len(kinds) == 1
        assert order == [n.name for n in schedule.streams(1)[kinds.pop()]]
    waits = [entry for entry in fake.log if entry[0] == "wait event"]
    assert waits
    assert all(after is not None for _, _, after in waits)
    assert [e[1] for e in fake.log if e[0] == "wait stream"][-2:] == ["outer", "outer"]
