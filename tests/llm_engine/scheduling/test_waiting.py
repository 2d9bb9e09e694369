"""The line: priority classes, ageing, and fair turns of the tenants."""

import heapq
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.scheduling.deadlines import Deadlines
from llm_engine.scheduling.shares import TenantShares
from llm_engine.scheduling.waiting import AGING_STEPS, WaitingLine
from llm_engine.sequence import Sequence

_ids = count()


def make(tenant: str = "", priority: int = 0, step: int = 0, **fields: object) -> Sequence:
    seq = Sequence(next(_ids), [1], 1, 9, priority=priority, tenant=tenant, **fields)  # type: ignore[arg-type]
    seq.arrival = seq.seq_id
    seq.queued_at_step = step
    return seq


class Line:
    """A waiting line with the bookkeeping that the scheduler does around it."""

    def __init__(self) -> None:
        self.shares = TenantShares()
        self.line = WaitingLine(self.shares)
        self.step = 0

    def add(self, seq: Sequence) -> Sequence:
        self.shares.enter(seq.tenant)
        self.line.push(seq)
        return seq

    def serve(self, cost: int = 1) -> Sequence | None:
        self.step += 1
        self.line.age(self.step)
        seq = self.line.first()
        if seq is not None:
            self.shares.advance(seq.tenant)
            self.line.remove(seq)
            self.shares.charge(seq.tenant, cost)
            self.shares.leave(seq.tenant)
        return seq


def test_a_flood_of_one_tenant_does_not_hold_up_another() -> None:
    line = Line()
    for _ in range(100):
        line.add(make("flood"))
    for _ in range(50):
        line.serve(cost=10)
    mine = [line.add(make("quiet")) for _ in range(3)]
    served = [line.serve(cost=10) for _ in range(7)]
    assert [seq for seq in served if seq in mine] == mine


def test_idle_time_earns_no_credit() -> None:
    line = Line()
    for _ in range(200):
        line.add(make("steady"))
    for _ in range(100):
        line.serve(cost=10)
    for _ in range(100):
        line.add(make("late"))
    tenants = [seq.tenant for _ in range(40) if (seq := line.serve(cost=10))]
    assert 18 <= tenants.count("late") <= 22


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.integers(1, 50), min_size=30, max_size=60),
    num_tenants=st.integers(2, 4),
)
def test_backlogged_tenants_differ_by_one_request(costs: list[int], num_tenants: int) -> None:
    line = Line()
    given_tokens = {str(i): 0 for i in range(num_tenants)}
    for tenant in given_tokens:
        for _ in range(len(costs)):
            line.add(make(tenant))
    for cost in costs:
        seq = line.serve(cost)
        assert seq is not None
        given_tokens[seq.tenant] += cost
        assert max(given_tokens.values()) - min(given_tokens.values()) <= max(costs)


def test_shares_forget_tenants_that_left() -> None:
    line = Line()
    for i in range(1000):
        line.add(make(f"t{i}"))
        line.serve(cost=5)
        line.add(make("anchor"))
        line.serve(cost=5)
    assert line.shares.num_tenants <= 3


def test_smaller_priority_first_then_arrival() -> None:
    line = Line()
    seqs = [line.add(make(priority=p)) for p in (2, 0, 1, 0)]
    assert [line.serve() for _ in range(4)] == [seqs[1], seqs[3], seqs[2], seqs[0]]


@settings(max_examples=30, deadline=None)
@given(distance=st.integers(1, 4), tenants=st.booleans())
def test_nothing_starves(distance: int, tenants: bool) -> None:
    """Urgent work without end holds a patient request up for its distance in classes only."""
    line = Line()
    patient = line.add(make("patient" if tenants else "", priority=distance))
    bound = (distance + 1) * AGING_STEPS + 2
    for _ in range(bound):
        line.add(make("urgent" if tenants else "", priority=0, step=line.step))
        if line.serve() is patient:
            return
    raise AssertionError("starved")


def test_a_parked_sequence_is_passed_over_and_keeps_its_place() -> None:
    line = Line()
    first, second = line.add(make()), line.add(make())
    line.line.park(first)
    assert line.line.first() is second
    assert len(line.line) == 2
    line.line.unpark(first)
    assert line.line.first() is first
    line.line.unpark(first)
    assert [line.serve(), line.serve(), line.serve()] == [first, second, None]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_line_equals_a_sorted_list(data: st.DataObject) -> None:
    """One tenant, no ageing: arrivals and departures against a plain heap."""
    line, model = Line(), list[tuple[int, int, Sequence]]()
    for _ in range(data.draw(st.integers(1, 60))):
        action = data.draw(st.sampled_from(["add", "serve", "leave"]))
        if action == "add":
            seq = line.add(make(priority=data.draw(st.integers(-2, 2)), step=line.step))
            heapq.heappush(model, (seq.priority, seq.arrival, seq))
        elif model and action == "serve":
            assert line.serve() is heapq.heappop(model)[2]
        elif model:
            gone = data.draw(st.sampled_from(model))
            model.remove(gone)
            heapq.heapify(model)
            line.line.remove(gone[2])
            line.shares.leave(gone[2].tenant)
        assert len(line.line) == len(model)


def test_deadlines_come_up_once_and_in_order() -> None:
    deadlines = Deadlines()
    seqs = [make(deadline_s=float(at)) for at in (5, 3, 9)]
    for seq in (*seqs, make()):
        deadlines.add(seq)
    deadlines.remove(seqs[2])
    assert deadlines.take_expired(2.9) == []
    assert deadlines.take_expired(6.0) == [seqs[1], seqs[0]]
    assert deadlines.take_expired(99.0) == []
    for at in range(10_000):
        seq = make(deadline_s=1e9 + at)
        deadlines.add(seq)
        deadlines.remove(seq)
    assert len(deadlines._heap) <= 65
