"""How long callers wait at a load: time to first token, throughput, and what binds them.

A forecast is simulated (queueing.py) several times from seeds of its own, so it repeats exactly and
says how far it is from an endless run; `forecast_range` adds the error of the service times.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from llm_engine.errors import InvalidConfig
from llm_engine.plan.queueing import ServiceTimes, Visit, visits

_NUM_RUNS = 8
_STUDENT_T = 2.365  # 97.5 % of Student's t with _NUM_RUNS - 1 = 7 degrees of freedom
_MAX_REQUESTS = 400_000
_FEWEST_REQUESTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What callers send: either `num_clients` who wait for each answer, or `arrivals_per_s`.

    Prompts are uniform within `spread` around `prompt_tokens` (0.4: from 0.6 to 1.4 of it);
    arrivals without waiting are a Poisson process. Units: tokens, requests per second.
    Raises: InvalidConfig for a load that is none, or both kinds at once.
    """

    prompt_tokens: int
    answer_tokens: int
    num_clients: int = 0
    arrivals_per_s: float = 0.0
    spread: float = 0.4

    def __post_init__(self) -> None:
        if (self.num_clients > 0) == (self.arrivals_per_s > 0):
            raise InvalidConfig(
                f"num_clients is {self.num_clients} and arrivals_per_s {self.arrivals_per_s}: "
                "exactly one of them must be above 0"
            )
        for name in ("prompt_tokens", "answer_tokens"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0.0 <= self.spread < 1.0:
            raise InvalidConfig(f"spread is {self.spread}; it must be from 0 up to 1, without 1")

    @property
    def longest_request(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return math.ceil(self.prompt_tokens * (1 + self.spread)) + self.answer_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value between the ends of an interval. Units: those of what is estimated."""

    value: float
    low: float
    high: float


_ENDLESS = Estimate(value=math.inf, low=math.inf, high=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadForecast:
    """What a load does to a machine.

    Units: seconds, tokens and requests per second. `relief` is by how much P95 TTFT falls when a
    resource doubles ("prefill" rate, "kv" capacity, "decode" rate): 1.5 is a third less; `binds`
    the one that helps most. `is_overloaded`: requests arrive faster than they can be served, so
    TTFT grows without end and is infinite here.
    """

    ttft_p50_s: Estimate
    ttft_p95_s: Estimate
    requests_per_s: float
    tokens_per_s: float
    binds: str
    relief: Mapping[str, float]
    is_overloaded: bool = False


def forecast(load: Load, times: ServiceTimes, *, num_requests: int = 300) -> LoadForecast:
    """The forecast of a load in the long run; the first requests of each run are left out.

    `num_requests` are those counted of each of eight runs; intervals hold 95 % of repetitions.
    Raises: InvalidConfig where the longest request does not fit the cache.
    """
    _check(load, times, num_requests)
    if load.arrivals_per_s >= (limit := saturation_per_s(load, times)):
        return _overloaded(load, limit)
    runs = _runs(load, times, num_requests)
    p95_s = _over_runs(runs, 95)
    relief = {
        name: p95_s.value / _over_runs(_runs(load, eased, num_requests), 95).value
        for name, eased in eased_times(times).items()
    }
    rate = statistics.fmean(_requests_per_s(run) for run in runs)
    return LoadForecast(
        ttft_p50_s=_over_runs(runs, 50),
        ttft_p95_s=p95_s,
        requests_per_s=rate,
        tokens_per_s=rate * (load.prompt_tokens + load.answer_tokens),
        binds=max(relief, key=lambda name: relief[name]),
        relief=relief,
    )


def ttft_s(load: Load, times: ServiceTimes, percent: float, num_requests: int = 300) -> Estimate:
    """One percentile of TTFT of a load that can be served, as `forecast` has it, and no more.

    Raises: InvalidConfig where the longest request does not fit the cache.
    """
    _check(load, times, num_requests)
    return _over_runs(_runs(load, times, num_requests), percent)


def forecast_range(
    load: Load,
    fast: ServiceTimes,
    likely: ServiceTimes,
    slow: ServiceTimes,
    *,
    num_requests: int = 300,
) -> LoadForecast:
    """The forecast at the likely times, its intervals widened to those of the fast and slow ones.

    Raises: as `forecast`.
    """
    middle = forecast(load, likely, num_requests=num_requests)
    ends = [_waits(load, times, num_requests) for times in (fast, slow)]
    # A faster decode can raise waits: callers are back sooner. So either end may be either.
    p50_s, p95_s = (
        _widened(found, [end.value for end in others])
        for found, *others in zip((middle.ttft_p50_s, middle.ttft_p95_s), *ends, strict=True)
    )
    return replace(middle, ttft_p50_s=p50_s, ttft_p95_s=p95_s)


def _widened(found: Estimate, ends: list[float]) -> Estimate:
    return replace(found, low=min(found.low, *ends), high=max(found.high, *ends))


def _waits(load: Load, times: ServiceTimes, num_requests: int) -> tuple[Estimate, Estimate]:
    """P50 and P95 of TTFT; endless where requests arrive faster than they are served."""
    _check(load, times, num_requests)
    if load.arrivals_per_s >= saturation_per_s(load, times):
        return _ENDLESS, _ENDLESS
    runs = _runs(load, times, num_requests)
    return _over_runs(runs, 50), _over_runs(runs, 95)


def saturation_per_s(load: Load, times: ServiceTimes) -> float:
    """Requests a second when there is always one waiting."""
    held = load.prompt_tokens + load.answer_tokens
    num_clients = min(512, 2 * math.ceil(times.kv_tokens / held) + 8)
    full = replace(load, num_clients=num_clients, arrivals_per_s=0.0)
    run = _run(full, times, seed=0, num_requests=max(400, 2 * num_clients))
    return _requests_per_s(run)


def eased_times(times: ServiceTimes) -> dict[str, ServiceTimes]:
    """The machine with twice of each resource: prefill rate, cache, decode rate."""
    return {
        "prefill": replace(
            times,
            prefill_s_per_token=times.prefill_s_per_token / 2,
            prefill_s_per_token2=times.prefill_s_per_token2 / 2,
        ),
        "kv": replace(times, kv_tokens=2 * times.kv_tokens),
        "decode": replace(
            times, decode_s=times.decode_s / 2, decode_s_each=times.decode_s_each / 2
        ),
    }


def simulate(load: Load, times: ServiceTimes, seed: int, num_requests: int) -> list[Visit]:
    """The first requests to end on a machine that begins empty, in the order of their end."""
    draw = random.Random(seed)

    def request(arrival_s: float) -> Visit:
        share = draw.uniform(1 - load.spread, 1 + load.spread)
        tokens = max(1, round(load.prompt_tokens * share))
        return Visit(tokens, load.answer_tokens, arrival_s)

    def at_random() -> Iterator[Visit]:
        now_s = 0.0
        while True:
            now_s += draw.expovariate(load.arrivals_per_s)
            yield request(now_s)

    if load.num_clients:
        first = iter([request(0.0) for _ in range(load.num_clients)])
        ended = visits(times, first, request)
    else:
        ended = visits(times, at_random(), lambda _: None)
    return list(itertools.islice(ended, num_requests))


def _check(load: Load, times: ServiceTimes, num_requests: int) -> None:
    if load.longest_request > times.kv_tokens:
        raise InvalidConfig(
            f"the longest request holds {load.longest_request} tokens and the cache "
            f"{times.kv_tokens:.0f}: shorten prompts, shard the cache, or add memory"
        )
    if not _FEWEST_REQUESTS <= num_requests <= _MAX_REQUESTS:
        raise InvalidConfig(
            f"num_requests is {num_requests}; it must be from {_FEWEST_REQUESTS} to {_MAX_REQUESTS}"
        )


def _runs(load: Load, times: ServiceTimes, num_requests: int) -> list[list[Visit]]:
    """The runs of one machine. Every machine gets the same seeds: comparisons share the noise."""
    return [_run(load, times, seed, num_requests) for seed in range(_NUM_RUNS)]


def _run(load: Load, times: ServiceTimes, seed: int, num_requests: int) -> list[Visit]:
    """Requests of one run after its beginning: some rounds of all callers, a third at least."""
    left_out = max(3 * load.num_clients, num_requests // 3)
    return simulate(load, times, seed, num_requests + left_out)[left_out:]


def _over_runs(runs: list[list[Visit]], percent: float) -> Estimate:
    """A percentile of TTFT: mean over runs, and the interval that their spread gives."""
    found = [float(np.percentile([visit.ttft_s for visit in run], percent)) for run in runs]
    middle = statistics.fmean(found)
    half = _STUDENT_T * statistics.stdev(found) / math.sqrt(len(found))
    return Estimate(value=middle, low=max(0.0, middle - half), high=middle + half)


def _requests_per_s(run: list[Visit]) -> float:
    return (len(run) - 1) / max(run[-1].end_s - run[0].end_s, 1e-12)


def _overloaded(load: Load, limit_per_s: float) -> LoadForecast:
    return LoadForecast(
        ttft_p50_s=_ENDLESS,
        ttft_p95_s=_ENDLESS,
        requests_per_s=limit_per_s,
        tokens_per_s=limit_per_s * (load.prompt_tokens + load.answer_tokens),
        binds=f"arrivals: {load.arrivals_per_s:.3g} a second, at most {limit_per_s:.3g} are served",
        relief={},
        is_overloaded=True,
    )
