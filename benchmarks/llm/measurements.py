"""What is measured: requests of each round, and the rows that come out of their token times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.llm.statistics import (
    Answer,
    decode_tok_s,
    gaps_s,
    percentile,
    prefill_tok_s,
    throughput_tok_s,
    tpot_s,
    ttft_s,
)
from benchmarks.llm.workload import Mix, Prose, Request, poisson_trace

# Share of our own capacity at which the mixed load arrives: a queue forms now and then.
LOAD = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A row: its name and unit, which way is better, and how it follows from the answers.

    A row that is not `compared` shows the peers' values without a ratio to them. One that
    `needs_prefixes` leaves out engines that keep no prompts.
    """

    row: str
    unit: str
    higher_is_better: bool
    of: Callable[[Sequence[Answer]], float]
    compared: bool = True
    needs_prefixes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Requests of a round, sent alike to every engine. The first metric ranks the engines.

    `window` as in `child.drive`. With `repeats` the second request repeats the first, and goes
    only to engines that keep prompts.
    """

    name: str
    requests: Callable[[int], list[Request]]
    metrics: tuple[Metric, ...]
    window: int | None = None
    repeats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Lengths in tokens, and counts, of one effort. The longest prompt is sent twice."""

    prompts: tuple[int, ...] = (512, 4096)
    context: int = 200
    new_tokens: int = 64
    widths: tuple[int, ...] = (1, 8, 32)
    mix: Mix = field(default_factory=Mix)
    num_arrivals: int = 24


FULL = Sizes()
QUICK = Sizes(
    prompts=(512, 1024),
    context=64,
    new_tokens=16,
    mix=Mix(prompt_tokens=(32, 64, 128), new_tokens=(8, 16, 32)),
    num_arrivals=12,
)


def closed_measurements(prose: Prose, sizes: Sizes) -> list[Measurement]:
    """Prefill, decode and prefix rows: what does not depend on another row."""
    return [
        *(_prefill(prose, length) for length in sizes.prompts[:-1]),
        _prefill_twice(prose, sizes.prompts[-1]),
        *(_decode(prose, width, sizes) for width in sizes.widths),
    ]


def load_measurement(prose: Prose, sizes: Sizes, rate_hz: float) -> Measurement:
    """Mixed lengths that arrive at random, in a trace that all engines get alike."""

    def requests(round_index: int) -> list[Request]:
        return poisson_trace(
            prose, sizes.mix, count=sizes.num_arrivals, rate_hz=rate_hz, key=f"load/{round_index}"
        )

    def ttfts(percent: float, answers: Sequence[Answer]) -> float:
        return 1e3 * percentile([ttft_s(answer) for answer in answers], percent)

    def gaps(percent: float, answers: Sequence[Answer]) -> float:
        return 1e3 * percentile(gaps_s(answers), percent)

    def tpots(percent: float, answers: Sequence[Answer]) -> float:
        return 1e3 * percentile([tpot_s(answer) for answer in answers], percent)

    latencies = [
        Metric(row=f"mixed load {name} P{p}", unit="ms", higher_is_better=False, of=partial(of, p))
        for name, of in (("TTFT", ttfts), ("ITL", gaps), ("TPOT", tpots))
        for p in (50, 95)
    ]
    rate = Metric(
        row="mixed load throughput", unit="tok/s", higher_is_better=True, of=throughput_tok_s
    )
    return Measurement(name="mixed load", requests=requests, metrics=(rate, *latencies))


def _prefill(prose: Prose, length: int) -> Measurement:
    name = f"prefill {length}"
    metric = Metric(
        row=name, unit="tok/s", higher_is_better=True,
        of=lambda answers: prefill_tok_s(length, answers[0]),
    )  # fmt: skip
    return Measurement(
        name=name,
        requests=lambda round_index: [(prose.prompt(length, f"{name}/{round_index}"), 1, 0.0)],
        metrics=(metric,),
    )


def _decode(prose: Prose, width: int, sizes: Sizes) -> Measurement:
    name = f"decode {width}"

    def requests(round_index: int) -> list[Request]:
        prompts = prose.prompts(width, sizes.context, f"{name}/{round_index}")
        return [(prompt, sizes.new_tokens, 0.0) for prompt in prompts]

    metric = Metric(row=name, unit="tok/s", higher_is_better=True, of=decode_tok_s)
    return Measurement(name=name, requests=requests, metrics=(metric,))


def _prefill_twice(prose: Prose, length: int) -> Measurement:
    """One prompt twice, one after the other: cold, then from what the engine kept."""
    once = _prefill(prose, length)
    hit = Metric(
        row=f"prefix hit TTFT {length}",
        unit="ms",
        higher_is_better=False,
        of=lambda answers: 1e3 * ttft_s(answers[1]),
        needs_prefixes=True,
    )
    ratio = Metric(
        row=f"prefix cold ÷ hit {length}",
        unit="×",
        higher_is_better=True,
        of=lambda answers: ttft_s(answers[0]) / ttft_s(answers[1]),
        compared=False,
        needs_prefixes=True,
    )
    return Measurement(
        name=once.name,
        requests=lambda round_index: once.requests(round_index) * 2,
        metrics=(*once.metrics, hit, ratio),
        window=1,
        repeats=True,
    )


def arrival_rate_hz(
    sizes: Sizes, prefill_tok_s: Sequence[float], decode_tok_s: Sequence[float]
) -> float:
    """The rate of the load: a share of the capacity of an engine with these measured rates."""
    capacity_hz = sizes.mix.capacity(
        statistics.median(prefill_tok_s), statistics.median(decode_tok_s)
    )
    return LOAD * capacity_hz
