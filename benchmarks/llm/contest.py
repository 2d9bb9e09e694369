"""The rounds: each engine measures each row once in turn; samples and failures are kept."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.llm.contestants import OURS, Contestant
from benchmarks.llm.measurements import Measurement, Metric
from benchmarks.llm.process import EngineAbsent, EngineFailed
from benchmarks.llm.statistics import Answer, agreement
from benchmarks.llm.workload import Request

_RUN_LIMIT_S = 180.0
# Two prompts may begin with the same word by chance.
_COLD_SHARE = 0.02
# Who stays after the first round: forms this close to their peer's best, and peers this close to
# the fastest peer.
_CLOSE_FORM, _CLOSE_PEER = 0.9, 0.5
_WARM_UP = [[[7] * 64, 4, 0.0], [[9] * 64, 4, 0.0]]

# (contestant's label, row) → round → value
Samples = dict[tuple[str, str], dict[int, float]]


@dataclass(slots=True, kw_only=True)
class Contest:
    """Engines in turn over rounds.

    Invariants: who is clearly slower than the fastest peer in the first round is left out of that
    measurement afterwards; an engine that failed leaves its earlier samples in place.
    """

    contestants: Sequence[Contestant]
    samples: Samples = field(default_factory=lambda: defaultdict(dict))
    answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _left_out: set[tuple[str, str]] = field(default_factory=set)
    _spent_s: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def next_round_s(self) -> float:
        """How long a further round takes, by the last time of each who is still in it."""
        still_in = self._spent_s.keys() - self._left_out
        return sum(self._spent_s[key] for key in still_in)

    def start(self) -> None:
        """Load everyone in turn and warm up; who cannot take part says why."""
        for contestant in self.contestants:
            if contestant.absent:
                continue
            say(f"loading {contestant.label}")
            try:
                contestant.start()
                contestant.ask("run", timeout_s=_RUN_LIMIT_S, requests=_WARM_UP)
            except (EngineAbsent, EngineFailed) as error:
                self._note(contestant, str(error))

    def measure(self, measurement: Measurement, round_index: int) -> None:
        """One measurement with everyone; the order turns from round to round."""
        requests = measurement.requests(round_index)
        able = [c for c in self.contestants if self._takes_part(c, measurement)]
        shift = round_index % max(len(able), 1)
        for contestant in [*able[shift:], *able[:shift]]:
            begin = time.perf_counter()
            sent = (
                requests if _keeps_prompts(contestant) or not measurement.repeats else requests[:1]
            )
            try:
                answers = contestant.ask(
                    "run", timeout_s=_RUN_LIMIT_S, requests=sent, window=measurement.window
                )
            except (EngineAbsent, EngineFailed) as error:
                self._note(contestant, f"{measurement.name}: {error}")
                continue
            self._check_cold(contestant, measurement, sent, answers)
            self._take(contestant, measurement, round_index, answers)
            value = self.samples[contestant.label, measurement.metrics[0].row][round_index]
            spent_s = time.perf_counter() - begin
            self._spent_s[contestant.label, measurement.name] = spent_s
            unit = measurement.metrics[0].unit
            say(f"  {measurement.name}: {contestant.label} {value:.4g} {unit} ({spent_s:.1f} s)")
        if round_index == 0:
            self._leave_out_slower(measurement)

    def stop(self) -> None:
        """End all processes."""
        for contestant in self.contestants:
            contestant.stop()

    def agreement_of(self, label: str, other: str, measurement: str) -> float | None:
        """Share of tokens before the first that differs between two, in the first round."""
        ours = self.answers.get((label, measurement))
        theirs = self.answers.get((other, measurement))
        return None if ours is None or theirs is None else agreement(ours, theirs)

    def _takes_part(self, contestant: Contestant, measurement: Measurement) -> bool:
        if contestant.absent or (contestant.label, measurement.name) in self._left_out:
            return False
        return not contestant.only or measurement.name in contestant.only

    def _take(
        self, contestant: Contestant, measurement: Measurement, index: int, answers: list[Answer]
    ) -> None:
        for metric in measurement.metrics:
            if metric.needs_prefixes and not _keeps_prompts(contestant):
                continue
            self.metrics[metric.row] = metric
            self.samples[contestant.label, metric.row][index] = metric.of(answers)
        if index == 0:
            self.answers[contestant.label, measurement.name] = answers

    def _check_cold(
        self,
        contestant: Contestant,
        measurement: Measurement,
        sent: Sequence[Request],
        answers: Sequence[Answer],
    ) -> None:
        """Note where a prompt that no engine has seen was not computed as a whole."""
        num_cold = 1 if measurement.repeats else len(sent)
        cached = sum(answer["cached"] or 0 for answer in answers[:num_cold])
        if cached > _COLD_SHARE * sum(len(prompt) for prompt, _, _ in sent[:num_cold]):
            self._note(contestant, f"{measurement.name}: {cached} tokens of a cold row were cached")

    def _leave_out_slower(self, measurement: Measurement) -> None:
        """Later rounds need the fastest peer, and of a peer its fastest form."""
        metric = measurement.metrics[0]
        rates: dict[str, dict[str, float]] = defaultdict(dict)
        for contestant in self.contestants:
            found = self.samples.get((contestant.label, metric.row), {}).get(0)
            if found is not None and contestant.name != OURS:
                rate = found if metric.higher_is_better else 1 / found
                rates[contestant.name][contestant.label] = rate
        fastest = max((max(forms.values()) for forms in rates.values()), default=0.0)
        for forms in rates.values():
            least = max(_CLOSE_FORM * max(forms.values()), _CLOSE_PEER * fastest)
            slow = [label for label, rate in forms.items() if rate < least]
            self._left_out |= {(label, measurement.name) for label in slow}

    def _note(self, contestant: Contestant, text: str) -> None:
        self.notes.append(f"{contestant.label}: {text}")
        say(f"  {contestant.label}: {text}")


def _keeps_prompts(contestant: Contestant) -> bool:
    return bool(contestant.facts.get("reuses_prefixes"))


def run_rounds(
    contest: Contest,
    plan: Callable[[int], Sequence[Measurement]],
    *,
    max_rounds: int,
    deadline: float,
    saved: Callable[[], Any],
) -> int:
    """Rounds until `max_rounds`, or until the next would pass `deadline` (`time.monotonic`).

    `plan` gives the measurements of a round one by one, so that a later one may depend on an
    earlier one's result; `saved` is called after each.

    Returns: the number of whole rounds.
    """
    for index in range(max_rounds):
        say(f"round {index + 1} of at most {max_rounds}")
        for measurement in plan(index):
            contest.measure(measurement, index)
            saved()
        if time.monotonic() + contest.next_round_s > deadline:
            return index + 1
    return max_rounds


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)
