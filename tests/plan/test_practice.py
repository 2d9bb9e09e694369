"""Practice: of other shapes than what is validated, and fits that recover what was planted."""

import itertools
import os
import random
from dataclasses import replace

import pytest

from kernels.calibration.computing import grid
from kernels.calibration.in_steps import InSteps
from kernels.calibration.table import BUSY_RATIO
from kernels.calibration.talking import SIZES_BYTES
from kernels.calibration.together import predict
from kernels.calibration.work import Fit
from tests.kernels.calibration.planted import planted
from workers.planning.validation import practice
from workers.planning.validation.practice import pieces_of, practice_plans, practised, times_s
from workers.planning.validation.rounds import NUM_RUNS, Case, Run, run_rounds
from workers.planning.validation.running import NodeRun, Ran
from workers.planning.validation.step import Plan
from workers.planning.validation.toys import TOYS
from workers.planning.validation.tracing import trace, with_seconds
from workers.planning.validation.validate import plans_of


@pytest.fixture(scope="module")
def traced():
    """Every plan that is practised or validated, traced once."""
    return {plan: trace(plan) for plan in (*practice_plans(), *plans_of(TOYS))}


def works_and_messages(traces):
    """All works of plans, and (operation, bytes) of their collectives."""
    works, messages = set(), set()
    for schedule, own in traces:
        works |= {work for found in own.values() for work in found}
        collectives = (node for node in schedule.nodes if node.kind == "collective")
        messages |= {(node.operation, node.size_bytes) for node in collectives}
    return works, messages


def test_nothing_practised_is_validated_or_measured_alone(traced):
    works, messages = works_and_messages(traced[plan] for plan in practice_plans())
    held_out_works, held_out_messages = works_and_messages(traced[p] for p in plans_of(TOYS))
    assert works
    assert not works & held_out_works
    assert not works & set(grid())
    assert not messages & held_out_messages
    assert not {size for _, size in messages} & set(SIZES_BYTES)


def test_layouts_that_overlap_are_validated_and_never_practised(traced):
    practised_layouts = {plan.layout for plan in practice_plans()}
    assert {plan.layout for plan in plans_of(TOYS)} - practised_layouts == {"tp split", "cp+ep"}
    overlapping, _ = traced[Plan(toy=TOYS[0], layout="tp split", chunk=512)]
    with pytest.raises(ValueError, match="does not wait for"):
        pieces_of(overlapping)


def run_of(timeline, num_ranks=2, disturbed=0.0, late_s=(0.0, 0.0)):
    """A run that took what virtual time says, each rank late by so much all the way."""
    ranks = []
    for rank in range(num_ranks):
        own = [span for span in timeline.spans if span.node.rank == rank]
        origin_s = 5.0 + late_s[rank]
        nodes = tuple(
            NodeRun(s.node.name, origin_s + s.begin_s, origin_s + s.end_s, s.end_s - s.begin_s)
            for s in own
        )
        took_s = nodes[-1].end_s - 5.0
        ranks.append(Ran(took_s=took_s, cpu_s=took_s, busy_s=took_s, disorder="", nodes=nodes))
    return Run(ranks=tuple(ranks), disturbed=disturbed)


PLANTED = InSteps(
    computing=Fit(constants=(0.6, 1.2, 1e-4), error=0.0, num_samples=0),
    meeting=Fit(constants=(1.1, 6e-4), error=0.0, num_samples=0),
)


@pytest.mark.parametrize("plan", practice_plans()[:3], ids=lambda plan: plan.name)
def test_pieces_of_a_run_add_up_to_it(plan, traced):
    schedule, works = traced[plan]
    timeline = predict(with_seconds(schedule, works, planted()), planted(), 5e7)
    pieces = pieces_of(schedule)
    found = times_s(pieces, run_of(timeline, late_s=(0.0, 1e-3)))
    assert sum(found) == pytest.approx(timeline.duration_s)
    named = [name for piece in pieces for name in piece.names]
    assert sorted(named) == sorted(node.name for node in schedule.nodes if node.rank == 0)
    assert not any(a.is_collective == b.is_collective for a, b in itertools.pairwise(pieces))


def test_computing_that_lost_its_core_takes_no_longer_and_its_rest_is_the_collectives(traced):
    """As if another program had the core of rank 1 for a while within a stretch."""
    plan = practice_plans()[0]
    schedule, works = traced[plan]
    timeline = predict(with_seconds(schedule, works, planted()), planted(), 5e7)
    pieces = pieces_of(schedule)
    run = run_of(timeline)
    first = run.ranks[1].nodes[0]
    nodes = [replace(n, begin_s=n.begin_s + 2.0, end_s=n.end_s + 2.0) for n in run.ranks[1].nodes]
    nodes[0] = replace(first, end_s=first.end_s + 2.0)
    lost = replace(run, ranks=(run.ranks[0], replace(run.ranks[1], nodes=tuple(nodes))))
    before, after = times_s(pieces, run), times_s(pieces, lost)
    assert after[0] == pytest.approx(before[0])
    assert after[1] == pytest.approx(before[1] + 2.0)
    assert after[2:] == pytest.approx(before[2:])


class Silent:
    """Ranks that are asked for runs before any is timed."""

    def run(self, function, plan, rate_bytes_s):
        """Nothing: runs are planted."""
        assert function.__name__ == "check"


def test_what_was_planted_in_steps_is_found_again(traced, monkeypatch):
    """Runs are those of virtual time under planted constants; nothing is timed."""
    parts = planted(seen_bytes_s=(5e7, 2e8))
    stepping = replace(parts, in_steps=PLANTED)

    def run_all(crew, cases, say, limit_s):
        for case in cases:
            schedule, works = traced[case.plan]
            timeline = predict(with_seconds(schedule, works, stepping), stepping, case.rate_bytes_s)
            case.runs += [run_of(timeline)] * NUM_RUNS

    monkeypatch.setattr(practice, "run_rounds", run_all)
    monkeypatch.setattr(practice, "trace", traced.__getitem__)
    monkeypatch.setattr(practice, "processors", lambda crew: (0.0, 0.0, 0.0))
    monkeypatch.setattr(practice, "others_share", lambda before, after: 0.3)
    found = practised(Silent(), parts, lambda text: None)
    for got, want in (
        (found.in_steps.computing, PLANTED.computing),
        (found.in_steps.meeting, PLANTED.meeting),
    ):
        assert got.constants == pytest.approx(want.constants, rel=1e-3)
        assert got.error < 1e-3
    assert found.disturbed == 0.3
    _, works = traced[practice_plans()[0]]
    assert all(found.has_seen(work) for own in works.values() for work in own)


def case_of(*runs):
    """A case with runs of (seconds, share of others)."""
    case = Case(practice_plans()[0], 1e8)
    for took_s, disturbed in runs:
        ran = Ran(took_s=took_s, cpu_s=0.0, busy_s=0.0, disorder="", nodes=())
        case.runs.append(Run(ranks=(ran, ran), disturbed=disturbed))
    return case


def test_whether_a_run_counts_depends_on_other_programs_alone():
    rng = random.Random(3)
    quiet = [(rng.uniform(1, 9), BUSY_RATIO) for _ in range(NUM_RUNS)]
    busy = [(rng.uniform(0.1, 90), 0.5) for _ in range(4)]
    case = case_of(*busy, *quiet)
    assert sorted(case.times_s) == sorted(took_s for took_s, _ in quiet)
    few = case_of(*busy, *quiet[:2])
    assert len(few.times_s) == NUM_RUNS
    assert not few.is_known


def test_runs_far_apart_are_added_to():
    steady = [(1.0 + 0.01 * i, 0.0) for i in range(NUM_RUNS)]
    assert case_of(*steady).is_known
    assert not case_of(*[(1.0 + 0.2 * i, 0.0) for i in range(NUM_RUNS)]).is_known


class Ranks:
    """Stands in for the two processes: says what others used in turn."""

    def __init__(self, shares, times=(1.0,)):
        self.shares, self.times = itertools.cycle(shares), itertools.cycle(times)
        self.num_runs = 0

    def run(self, function, plan, rate_bytes_s, timeline):
        """Two ranks that each had a processor; others had their share of the time."""
        self.num_runs += 1
        took_s, share = next(self.times), next(self.shares)
        busy_s = share * took_s * (os.cpu_count() or 1)
        ran = Ran(took_s=took_s, cpu_s=0.0, busy_s=busy_s, disorder="", nodes=())
        return [ran, ran]


def test_rounds_end_when_all_is_known_and_go_on_where_it_is_not():
    quiet = Ranks([0.0])
    run_rounds(quiet, [case_of(), case_of()], lambda text: None, limit_s=60)
    assert quiet.num_runs == 2 * NUM_RUNS
    half = Ranks([0.0, 0.5])
    run_rounds(half, [case_of()], lambda text: None, limit_s=60)
    assert half.num_runs == 2 * NUM_RUNS - 1
    late = Ranks([0.5])
    run_rounds(late, [case_of()], lambda text: None, limit_s=0)
    assert late.num_runs == NUM_RUNS
    apart = Ranks([0.0], times=(1.0, 2.0, 3.0))
    run_rounds(apart, [case_of()], lambda text: None, limit_s=60)
    assert apart.num_runs > NUM_RUNS
