"""The language engine against transformers, llama.cpp and vLLM on the same machine and weights.

Every engine runs in a process of its own with the same number of threads and gets the same token
ids: greedy, the end-of-sequence tokens ignored. In each round each engine measures each row once
in turn; ratios are taken within rounds. Rows are saved as they come, so that an interruption or a
peer that crashes loses nothing of the rest.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.limits import Limits
from benchmarks.llm import measurements
from benchmarks.llm.bounds import Bounds, bounds_of, measured_limits
from benchmarks.llm.contest import Contest, run_rounds, say
from benchmarks.llm.contestants import OURS, Setting, our_contestant, peer_contestants
from benchmarks.llm.extras import note_loads_and_memory, steady_rows
from benchmarks.llm.figure import save_llm_bars
from benchmarks.llm.hop_rows import hop_rows
from benchmarks.llm.measurements import Measurement
from benchmarks.llm.model_facts import ModelFacts, read_model_facts
from benchmarks.llm.options import LLMOptions
from benchmarks.llm.process import EngineFailed
from benchmarks.llm.rows import Row, Stamp, contest_rows
from benchmarks.llm.service_rows import PlanMismatch, service_rows
from benchmarks.llm.statistics import DEFINITIONS
from benchmarks.llm.workload import Prose, prose_of
from benchmarks.report import commit, machine, print_table, save_json
from llm_engine.weights.resolve import resolve

INTERRUPTED = 130
REFUSED = 3
# Of the rounds alone; loading, limits, the steady rows and the figure come on top.
_BUDGET_S = {False: 600.0, True: 70.0}
_MAX_ROUNDS = {False: 7, True: 2}


class Suite:
    """One run: what was measured so far can be turned into rows at any time."""

    def __init__(self, options: LLMOptions) -> None:
        """Find the model and the contestants; nothing is started."""
        torch.set_num_threads(options.threads)
        self.options = options
        source = resolve(options.model)
        gguf = source.path if source.kind == "gguf" else None
        self.setting = Setting(
            model=options.model,
            gguf=gguf,
            threads=options.threads,
            logs=Path(tempfile.mkdtemp(prefix="lanewise-bench-")),
        )
        if gguf is None:
            raise SystemExit(f"{options.model} is no GGUF file: prompts and limits come from one")
        self.model: ModelFacts = read_model_facts(gguf)
        self.prose: Prose = prose_of(self.model.vocabulary)
        self.contest = Contest(
            contestants=[
                our_contestant(self.setting),
                our_contestant(
                    self.setting, "drafts", frozenset({"decode 1"}), speculation="ngram"
                ),
                *peer_contestants(self.setting, options.peers),
            ]
        )
        facts = machine()
        self.facts = facts
        self.commit = commit()
        self.limits: Limits | None = None
        self.further: list[Row] = []
        self.num_rounds = 0
        self.path: Path | None = options.json
        self.load_average = [os.getloadavg()[0]]

    @property
    def stamp(self) -> Stamp:
        """Origin of the rows."""
        cpu = f"{self.facts['cpu']}, {self.setting.threads} threads"
        plan_hash = str(self.contest.contestants[0].facts.get("plan_hash", ""))
        return Stamp(machine=cpu, commit=self.commit, plan_hash=plan_hash)

    def rows(self) -> list[Row]:
        """All rows so far."""
        return contest_rows(self.contest, self.stamp, self._bounds()) + self.further

    def save(self) -> Path:
        """Write what there is."""
        self.path = save_json("llm", self.rows(), self.path, self._more())
        return self.path

    def engines(self) -> None:
        """Limits, loading, the rounds, limits again."""
        self._measure_limits()
        self.contest.start()
        deadline = time.monotonic() + _BUDGET_S[self.options.quick]
        self.num_rounds = run_rounds(
            self.contest,
            self._plan,
            max_rounds=_MAX_ROUNDS[self.options.quick],
            deadline=deadline,
            saved=self.save,
        )
        note_loads_and_memory(self.contest)
        self.contest.stop()
        self._measure_limits()

    def _plan(self, _: int) -> Iterator[Measurement]:
        sizes = measurements.QUICK if self.options.quick else measurements.FULL
        yield from measurements.closed_measurements(self.prose, sizes)
        rates = [self._ours(row) for row in ("prefill 512", "decode 32")]
        if all(rates):
            rate_hz = measurements.arrival_rate_hz(sizes, *rates)
            say(f"load: {rate_hz:.3g} requests/s, {measurements.LOAD:.0%} of our capacity")
            yield measurements.load_measurement(self.prose, sizes, rate_hz)

    def _ours(self, row: str) -> list[float]:
        first_round = self.contest.samples.get((OURS, row), {})
        return [value for index, value in first_round.items() if index == 0]

    def _measure_limits(self) -> None:
        try:
            now = measured_limits(self.setting, quick=self.options.quick)
        except EngineFailed as error:
            self.contest.notes.append(f"limits: {error}")
            return
        self.limits = now if self.limits is None else self.limits.better(now)

    def _bounds(self) -> Bounds | None:
        facts = self.contest.contestants[0].facts
        if self.limits is None or not facts:
            return None
        try:
            return bounds_of(self.model, self.limits, facts)
        except EngineFailed as error:
            if (note := f"limits: {error}") not in self.contest.notes:
                self.contest.notes.append(note)
            return None

    def _more(self) -> dict[str, Any]:
        return {
            "quick": self.options.quick,
            "threads": self.setting.threads,
            "rounds": self.num_rounds,
            "load_average": [*self.load_average, os.getloadavg()[0]],
            "definitions": dict(DEFINITIONS),
            "limits": None if self.limits is None else self.limits.as_dict(),
            "weight_bytes": self.model.weight_bytes,
            "engines": {c.label: c.facts | {"absent": c.absent} for c in self.contest.contestants},
            "notes": self.contest.notes,
        }


def command(options: LLMOptions) -> int:
    """Measure, print, save.

    Returns: the exit code: 0, 3 for a service of another plan, 130 when interrupted.
    """
    suite, code = Suite(options), 0
    try:
        if options.includes("engines"):
            suite.engines()
        if options.includes("steady"):
            suite.further += steady_rows(
                suite.setting, suite.prose, suite.stamp, quick=options.quick
            )
            suite.save()
        if options.includes("service") and (options.url or options.serve):
            suite.further += service_rows(
                options, suite.setting, suite.prose, suite.stamp, suite.model.vocabulary
            )
        if options.includes("hops"):
            suite.further += hop_rows(
                options, suite.setting, suite.prose, suite.stamp, suite.model.vocabulary
            )
    except PlanMismatch as error:
        say(f"refused: {error}")
        code = REFUSED
    except KeyboardInterrupt:
        say("interrupted: what was measured so far is saved")
        suite.contest.notes.append("interrupted")
        code = INTERRUPTED
    finally:
        suite.contest.stop()
    _report(suite)
    return code


def _report(suite: Suite) -> None:
    rows = suite.rows()
    print_table(rows)
    for name, text in DEFINITIONS.items():
        print(f"{name}: {text}")
    for note in suite.contest.notes:
        print(f"note: {note}")
    path = suite.save()
    print(f"saved {path}; engines' own output in {suite.setting.logs}")
    if any(row.get("vs_peer") or row.get("of_limit") for row in rows):
        print(f"saved {save_llm_bars(rows, path.with_suffix('.png'), suite.stamp)}")
