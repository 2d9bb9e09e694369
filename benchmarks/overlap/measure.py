"""The measurement of one model: its computation, a link, stages in turn, and the predictions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from benchmarks.overlap.crew import Crew
from benchmarks.overlap.prediction import NodeSeconds, Sizes, medians, predict
from benchmarks.overlap.stages import Computation, Stage
from kernels.collectives.schedules.virtual_time import Timeline
from llm_engine.parallel.overlap_choice import StepCosts
from llm_engine.parallel.overlap_wire import LinkLine

SIZE = 2
_LINK_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured: layers (None: all), tokens of the prompt, rounds, and their time."""

    num_layers: int | None
    num_tokens: int
    rounds: int
    budget_s: float


FULL = Effort(num_layers=None, num_tokens=3072, rounds=3, budget_s=150.0)
QUICK = Effort(num_layers=2, num_tokens=2048, rounds=3, budget_s=40.0)


@dataclass(slots=True)
class StageRun:
    """What a stage took, round by round, and what it yielded on rank 0; the bits of all ranks."""

    stage: Stage
    seconds: list[float] = field(default_factory=list[float])
    stretch: list[float] = field(default_factory=list[float])
    results: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    digests: list[str] = field(default_factory=list[str])

    @property
    def median_s(self) -> float:
        """Of the slowest rank."""
        return statistics.median(self.seconds)

    @property
    def result(self) -> Mapping[str, Any]:
        """Rank 0's, the same in every round."""
        return self.results[0]


class WrongBits(AssertionError):
    """An overlapped run did not yield the bits of the same chunks one after the other."""


class Measurement:
    """A model on the ranks of a crew."""

    def __init__(self, crew: Crew, model: str, num_layers: int, effort: Effort) -> None:
        """Have every rank make its weights, and look at the computation once."""
        self.crew, self.effort = crew, effort
        facts = crew("prepare", model, num_layers, effort.num_tokens)[0]
        self.num_parameters: int = facts["parameters"]
        self.dtype: str = facts["dtype"]
        self.sizes = Sizes(
            tp_bytes=facts["tp_bytes"],
            cp_bytes=facts["cp_bytes"],
            num_layers=num_layers,
            num_tokens=effort.num_tokens,
        )
        self._nodes: dict[Computation, list[NodeSeconds]] = {}
        self._lines: dict[tuple[str, str], LinkLine] = {}
        self._row_seconds: dict[int, float] = {}

    def of_answers(self, num_answers: int) -> Self:
        """Of steps that give so many sequences a token, over the same ranks."""
        other = copy(self)
        other.sizes = replace(self.sizes, num_tokens=num_answers)
        other._nodes, other._lines, other._row_seconds = {}, {}, {}
        return other

    def meet(self, rate_bytes_s: float) -> None:
        """Limit the link, and forget what the one before took."""
        self.crew("meet", rate_bytes_s)
        self._lines.clear()
        self._nodes.clear()

    def computation_s(self, stage: Stage, repeats: int = 3) -> float:
        """Core seconds of a stage's computation on the slower rank; the least of a few."""
        totals: list[float] = []
        for _ in range(repeats):
            nodes = self.crew("compute", stage)
            self._nodes.setdefault(stage.computation, []).append(nodes)
            totals.append(max(sum(of_rank.values()) for of_rank in nodes))
        return min(totals)

    def rate_for(self, wire_s: float) -> float:
        """The rate at which the reductions of a whole step take so long: 2 (N-1)/N S each."""
        size_bytes = 2 * (SIZE - 1) / SIZE * self.sizes.num_tokens * self.sizes.tp_bytes
        return 2 * self.sizes.num_layers * size_bytes / wire_s

    def step_costs(self, stages: Sequence[Stage]) -> StepCosts:
        """What the gate asks for; stages of one split with several numbers of chunks.

        The computation does not depend on the link and is measured once.
        """
        line = self.line(stages[0])
        for stage in stages:
            num_rows = -(-self.sizes.num_tokens // stage.num_chunks)
            if num_rows not in self._row_seconds:
                self._row_seconds[num_rows] = self.computation_s(stage, 2) / stage.num_chunks
        return StepCosts(
            compute_s=self._row_seconds,
            num_layers=self.sizes.num_layers,
            bytes_per_token=self.sizes.tp_bytes,
            idle=line,
            busy=self._busy_line(stages[0]),
        )

    def line(self, stage: Stage) -> LinkLine:
        """The link under the exchanges of a stage, measured while nothing else runs.

        The least of a few, since what else the machine does adds to them all.
        """
        operation = "all_gather" if stage.split == "cp" else "all_reduce"
        key = operation, stage.contract
        if key not in self._lines:
            whole = self.sizes.wire_bytes(stage)
            sizes = [whole // 4, whole]
            times = self.crew("link", operation, sizes, _LINK_REPEATS, stage.contract)
            slowest = [
                min(max(pair) for pair in zip(*of_size, strict=True))
                for of_size in zip(*times, strict=True)
            ]
            self._lines[key] = LinkLine.through(dict(zip(sizes, slowest, strict=True)))
        return self._lines[key]

    def _busy_line(self, stage: Stage) -> LinkLine:
        """As `line`, while the ranks compute: what the gate counts on."""
        whole = self.sizes.wire_bytes(stage)
        sizes = [whole // 4, whole]
        times = self.crew("link", "all_reduce", sizes, _LINK_REPEATS, stage.contract, stage)
        slowest = [
            statistics.mean(max(pair) for pair in zip(*of_size, strict=True))
            for of_size in zip(*times, strict=True)
        ]
        return LinkLine.through(dict(zip(sizes, slowest, strict=True)))

    def rounds(self, stages: Sequence[Stage], say: Callable[[str], None]) -> list[StageRun]:
        """Every stage once a round, and its computation alone beside it.

        What the first stage yields is what the others are compared with.
        """
        self.crew("compare_with_next")
        runs = [StageRun(stage) for stage in stages]
        begin_s = time.monotonic()
        for number in range(self.effort.rounds):
            if number > 1 and time.monotonic() - begin_s > self.effort.budget_s:
                break
            measured: dict[Computation, float] = {}
            for run in runs:
                key = run.stage.computation
                if key not in measured:
                    measured[key] = self.computation_s(run.stage, 1)
                self._run(run, measured[key])
            say(f"round {number + 1}: " + ", ".join(f"{run.seconds[-1]:.2f} s" for run in runs))
        return runs

    def check_bits(self, run: StageRun) -> None:
        """Compare an overlapped stage with its own chunks in turn. Raises: WrongBits."""
        stage = run.stage
        in_turn = self.crew("run", replace(stage, is_overlapped=False))
        same = zip(in_turn, run.digests, strict=True)
        wrong = [rank for rank, (found, digest) in enumerate(same) if found["digest"] != digest]
        if wrong:
            raise WrongBits(
                f"{stage.name}: {stage.num_chunks} overlapped chunks differ from those in turn on "
                f"ranks {wrong}"
            )

    def predicted(self, stage: Stage) -> Timeline:
        """The stage in virtual time, from the medians of what was measured over this link."""
        seconds = medians(self._nodes[stage.computation])
        return predict(stage, self.sizes, SIZE, seconds, self.line(stage))

    def _run(self, run: StageRun, alone_s: float) -> None:
        answers = self.crew("run", run.stage)
        run.seconds.append(max(answer["seconds"] for answer in answers))
        run.stretch.append(max(answer["computing_s"] for answer in answers) / alone_s)
        run.results.append(answers[0])
        run.digests = [answer["digest"] for answer in answers]
