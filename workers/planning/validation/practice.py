"""Steps of other shapes and at other rates, run beforehand: what a step takes beyond its parts."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernels.calibration.calibrate import others_share, processors
from kernels.calibration.crew import Crew
from kernels.calibration.fitting import Sample, fit
from kernels.calibration.in_steps import SUM_OF_PARTS, InSteps
from kernels.calibration.seat import SIZE
from kernels.calibration.table import Calibration
from kernels.calibration.together import exchange_s
from kernels.calibration.work import Work
from kernels.collectives.schedules.graph import Place, Schedule
from workers.planning.validation.rounds import Case, Run, run_rounds
from workers.planning.validation.running import check
from workers.planning.validation.step import Plan
from workers.planning.validation.toys import Toy
from workers.planning.validation.tracing import alone_s, trace

# No work and no message of these is one of a validated toy.
DENSE = Toy(
    name="practised dense",
    num_layers=2,
    num_tokens=384,
    channels=448,
    heads=14,
    inner=832,
    chunks=(128, 384),
)
EXPERTS = Toy(
    name="practised experts",
    num_layers=2,
    num_tokens=384,
    channels=320,
    heads=10,
    inner=448,
    num_experts=4,
    chunks=(128, 384),
)
# Products of few rows, whose calls are most of their time.
SMALL_EXPERTS = Toy(
    name="practised small experts",
    num_layers=2,
    num_tokens=384,
    channels=320,
    heads=10,
    inner=320,
    num_experts=16,
    chunks=(128,),
)
# Layouts whose nodes run one after the other: what overlaps is predicted, never practised.
_LAYOUTS: Mapping[str, tuple[str, ...]] = {
    DENSE.name: ("tp", "cp gather", "cp heads"),
    EXPERTS.name: ("tp", "cp+ag/rs"),
    SMALL_EXPERTS.name: ("tp", "cp+ag/rs"),
}
_LIMIT_S = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The nodes of a stretch between two collectives, in order, or one collective."""

    names: tuple[str, ...]
    is_collective: bool


def practice_plans(toys: Sequence[Toy] = (DENSE, EXPERTS, SMALL_EXPERTS)) -> list[Plan]:
    """What is practised."""
    return [
        Plan(toy=toy, layout=layout, chunk=chunk)
        for toy in toys
        for chunk in toy.chunks
        for layout in _LAYOUTS[toy.name]
    ]


def practised(crew: Crew, calibration: Calibration, say: Callable[[str], None]) -> Calibration:
    """The calibration with what whole steps take, at the rates that it was measured at.

    A first run of each is not timed: it makes what later ones find, and shows that all layouts
    of a toy compute the same.
    Raises: CrewFailed.
    """
    begin_s, before = time.monotonic(), processors(crew)
    traced = {plan: trace(plan) for plan in practice_plans()}
    cases = [
        Case(plan, rate_bytes_s)
        for rate_bytes_s, plan in itertools.product(calibration.seen_bytes_s, traced)
    ]
    say(f"practising {len(cases)} steps")
    for case in cases:
        crew.run(check, case.plan, case.rate_bytes_s)
    run_rounds(crew, cases, say, _LIMIT_S)
    parts = replace(calibration, in_steps=SUM_OF_PARTS)
    samples = [each for case in cases for each in _samples(case, *traced[case.plan], parts)]
    seen = [work for _, works in traced.values() for own in works.values() for work in own]
    return replace(
        calibration,
        in_steps=InSteps(
            computing=fit(
                _evenly([sample for piece, sample in samples if not piece.is_collective])
            ),
            meeting=fit(_evenly([sample for piece, sample in samples if piece.is_collective])),
        ),
        seen_sizes=_with_sizes(calibration.seen_sizes, seen),
        disturbed=max(calibration.disturbed, others_share(before, processors(crew))),
        duration_s=round(calibration.duration_s + time.monotonic() - begin_s, 1),
    )


def _samples(
    case: Case, schedule: Schedule, works: Mapping[Place, list[Work]], parts: Calibration
) -> list[tuple[Piece, Sample]]:
    pieces = pieces_of(schedule)
    found: list[tuple[Piece, Sample]] = []
    for piece, took_s in zip(pieces, _mean_times_s(pieces, case.counted), strict=True):
        terms = (
            _meeting_terms(case, schedule, piece, parts)
            if piece.is_collective
            else _computing_terms(works, piece, parts)
        )
        found.append((piece, Sample(terms, took_s, took_s, case.plan.name)))
    return found


def pieces_of(schedule: Schedule) -> list[Piece]:
    """A serial schedule as stretches of computing and the collectives between them.

    Raises: ValueError for a schedule that overlaps: there is no such order in it.
    """
    names = [name for rank, name in schedule.order if rank == 0]
    for earlier, later in itertools.pairwise(names):
        if (0, earlier) not in schedule.before[0, later]:
            raise ValueError(f"{schedule.name}: {later} does not wait for {earlier}")
    found: list[Piece] = []
    kinds = itertools.groupby(names, key=lambda name: schedule.by_place[0, name].kind)
    for kind, group in kinds:
        if kind == "compute":
            found.append(Piece(names=tuple(group), is_collective=False))
        else:
            found += [Piece(names=(name,), is_collective=True) for name in group]
    return found


def times_s(pieces: Sequence[Piece], run: Run) -> list[float]:
    """How long each piece of a run took; they add up to the run, but for what ends it.

    Computing has the time that the busier rank's core gave it, which other programs do not
    lengthen. A collective has the rest: from where the later rank began the stretch before it to
    where the later one began what follows, less that computing.
    """
    begins = _latest({n.name: n.begin_s for n in rank.nodes} for rank in run.ranks)
    ends = _latest({n.name: n.end_s for n in rank.nodes} for rank in run.ranks)
    found: list[float] = []
    from_s, computing_s = begins[pieces[0].names[0]], 0.0
    for index, piece in enumerate(pieces):
        if not piece.is_collective:
            computing_s = run.core_s(piece.names)
            found.append(computing_s)
            continue
        to_s = ends[piece.names[-1]]
        if index + 1 < len(pieces) and not pieces[index + 1].is_collective:
            to_s = begins[pieces[index + 1].names[0]]
        found.append(to_s - from_s - computing_s)
        from_s, computing_s = to_s, 0.0
    return found


def _latest(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for rank in ranks:
        found |= {name: max(found.get(name, at_s), at_s) for name, at_s in rank.items()}
    return found


def _mean_times_s(pieces: Sequence[Piece], runs: Sequence[Run]) -> list[float]:
    """Means, since what they are for adds them up; of all runs but the fastest and the slowest."""
    ordered = sorted(runs, key=lambda run: run.took_s)
    each = [times_s(pieces, run) for run in (ordered[1:-1] or ordered)]
    return [statistics.fmean(times) for times in zip(*each, strict=True)]


def _computing_terms(
    works: Mapping[Place, list[Work]], piece: Piece, parts: Calibration
) -> tuple[float, ...]:
    """Those of the rank with more to do."""
    own = [[work for name in piece.names for work in works[rank, name]] for rank in range(SIZE)]
    return *max((alone_s(rank, parts) for rank in own), key=sum), float(len(piece.names))


def _meeting_terms(
    case: Case, schedule: Schedule, piece: Piece, parts: Calibration
) -> tuple[float, ...]:
    node = schedule.by_place[0, piece.names[0]]
    return exchange_s(node, parts, case.rate_bytes_s), 1.0


def _evenly(samples: Sequence[Sample]) -> list[Sample]:
    """Errors over one time, not over each sample's: seconds are what adds up to a step."""
    unit_s = statistics.fmean(sample.explained_s for sample in samples)
    return [replace(sample, unit_s=unit_s) for sample in samples]


def _with_sizes(
    seen: Mapping[str, tuple[tuple[int, ...], ...]], works: Sequence[Work]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    found = {kind: dict.fromkeys(sizes) for kind, sizes in seen.items()}
    for work in works:
        found.setdefault(work.kind, {})[work.sizes] = None
    return {kind: tuple(sizes) for kind, sizes in found.items()}
