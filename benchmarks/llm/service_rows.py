"""What gateway and queue cost: a service beside the bare engine, in turn, on the same prompts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.llm.contest import say
from benchmarks.llm.contestants import Contestant, Setting, our_contestant
from benchmarks.llm.http_stream import PLAN_HEADER, Service, Streamed
from benchmarks.llm.options import LLMOptions
from benchmarks.llm.process import EngineAbsent, EngineFailed
from benchmarks.llm.rows import Row, Stamp, blank, with_samples
from benchmarks.llm.service_process import running_service
from benchmarks.llm.statistics import percentile, throughput_tok_s, ttft_s
from benchmarks.llm.workload import Prose

_RUN_LIMIT_S = 240.0
_PROMPT_TOKENS = 96
_CROWD, _CROWD_TOKENS = 200, 16
_TTFT_LIMIT_MS = 10.0
_THROUGHPUT_LIMIT = 0.95


class PlanMismatch(Exception):
    """The service runs another plan than the one asked for; both hashes are in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A service and the bare engine, and the texts that both are given."""

    service: Service
    bare: Contestant
    text: Callable[[str], str]

    def bare_answers(self, texts: Sequence[str], max_tokens: int) -> list[dict[str, Any]]:
        requests = [[text, max_tokens, 0.0] for text in texts]
        return self.bare.ask("run", timeout_s=_RUN_LIMIT_S, requests=requests)


def service_rows(
    options: LLMOptions, setting: Setting, prose: Prose, stamp: Stamp, vocabulary: Sequence[str]
) -> list[Row]:
    """Rows of the service at `options.url`, or of one started here.

    Raises: PlanMismatch.
    """
    given = Service(url=options.url, api_key=options.api_key, model="")
    bare = our_contestant(setting, "bare", speculation="auto")
    text = prompt_texts(prose, vocabulary)
    try:
        with ExitStack() as stack:
            service = given
            if not options.url:
                service = stack.enter_context(running_service(setting)).service
            service = replace(service, model=model_of(service, options.model))
            found = check_plan(service, options.plan_hash)
            pair = _Pair(service=service, bare=bare, text=text)
            return _rows(pair, replace(stamp, plan_hash=found), quick=options.quick)
    except (OSError, EngineAbsent, EngineFailed) as error:
        say(f"service: {error}")
        return [blank("service", "", stamp) | {"error": str(error)}]
    finally:
        bare.stop()


def prompt_texts(prose: Prose, vocabulary: Sequence[str]) -> Callable[[str], str]:
    """A maker of prompts of about 96 tokens; each key gives another one."""

    def text(key: str) -> str:
        words = (vocabulary[t] for t in prose.prompt(_PROMPT_TOKENS, f"service/{key}"))
        return "".join(words).replace("Ġ", " ").strip()

    return text


def check_plan(service: Service, asked: str) -> str:
    """The hash in the service's answers.

    Raises: PlanMismatch where it is not the one asked for; OSError where the service fails.
    """
    probe = service.stream("Hello", 1)
    if probe.error:
        raise OSError(f"{service.url} does not answer: {probe.error}")
    if asked and probe.plan_hash != asked:
        found = probe.plan_hash or f"no {PLAN_HEADER} header"
        raise PlanMismatch(
            f"{service.url} runs plan {found}, asked for was {asked}: start it with the "
            "configuration of that plan, or give the hash that it runs"
        )
    return probe.plan_hash


def model_of(service: Service, wanted: str) -> str:
    """The name to ask for: `wanted` where it is served, else the first model that is.

    Raises: OSError where none is.
    """
    names = [str(model["id"]) for model in service.get("/v1/models")["data"]]
    if not names:
        raise OSError(f"{service.url} serves no model")
    return wanted if wanted in names else names[0]


def _rows(pair: _Pair, stamp: Stamp, *, quick: bool) -> list[Row]:
    for index in range(3):
        pair.bare_answers([pair.text(f"warm/{index}")], 8)
        pair.service.stream(pair.text(f"warm/{index}"), 8)
    rows = [_ttft_row(pair, stamp, 8 if quick else 24)]
    rows.append(_throughput_row(pair, stamp, rounds=1 if quick else 11, tokens=16 if quick else 64))
    rows.append(_crowd_row(pair, stamp))
    return rows


def _ttft_row(pair: _Pair, stamp: Stamp, count: int) -> Row:
    """Time to first token beyond the bare engine's, in pairs."""
    added_ms: list[float] = []
    theirs_ms: list[float] = []
    for index in range(count):
        text = pair.text(f"ttft/{index}")
        bare_s = ttft_s(pair.bare_answers([text], 4)[0])
        streamed = _checked(pair.service.stream(text, 4), stamp)
        served_s = streamed.times[0] - streamed.sent
        added_ms.append(1e3 * (served_s - bare_s))
        theirs_ms.append(1e3 * bare_s)
    row = with_samples(blank("service TTFT added", "ms", stamp), added_ms)
    say(f"  service TTFT added: {row['ours']:.3g} ms over {count} pairs")
    return row | {
        "limit": _TTFT_LIMIT_MS,
        "bare_ms": statistics.median(theirs_ms),
        "p95": percentile(added_ms, 95),
    }


def _throughput_row(pair: _Pair, stamp: Stamp, *, rounds: int, tokens: int) -> Row:
    """Output rate of 32 streams at once, as a share of the bare engine's."""
    shares: list[float] = []
    for index in range(rounds):
        texts = [pair.text(f"rate/{index}/{stream}") for stream in range(32)]
        bare = throughput_tok_s(pair.bare_answers(texts, tokens))
        served = _rate([_checked(s, stamp) for s in pair.service.streams(texts, tokens)])
        shares.append(served / bare)
        say(f"  service 32 streams: {served:.4g} tok/s, bare engine {bare:.4g}")
    row = with_samples(blank("service throughput of bare, 32 streams", "ratio", stamp), shares)
    return row | {"limit": _THROUGHPUT_LIMIT}


def _rate(streams: Sequence[Streamed]) -> float:
    count = sum(stream.completion_tokens for stream in streams)
    begin, end = min(s.sent for s in streams), max(s.times[-1] for s in streams)
    return count / (end - begin)


def _crowd_row(pair: _Pair, stamp: Stamp) -> Row:
    """200 streams at once: tokens that did not arrive, each counted by its log probability."""
    texts = [pair.text(f"crowd/{index}") for index in range(_CROWD)]
    streams = pair.service.streams(texts, _CROWD_TOKENS, logprobs=True)
    errors = [stream.error for stream in streams if stream.error]
    lost = sum(lost_tokens(stream, _CROWD_TOKENS) for stream in streams)
    say(f"  service {_CROWD} streams: {lost} tokens lost, {len(errors)} errors")
    row = blank(f"service lost tokens, {_CROWD} streams", "tokens", stamp)
    started = [s.times[0] - s.sent for s in streams if s.times]
    return row | {
        "ours": lost,
        "limit": 0,
        "error": errors[0] if errors else None,
        "errors": len(errors),
        "ttft_p95_ms": 1e3 * percentile(started, 95) if started else None,
    }


def lost_tokens(stream: Streamed, asked: int) -> int:
    """Tokens of a stream that are missing: not streamed, or not counted in its usage."""
    if stream.error or not stream.is_done or stream.finish_reason != "length":
        return max(asked - len(stream.times), 1)
    return max(asked - len(stream.times), asked - stream.completion_tokens, 0)


def _checked(stream: Streamed, stamp: Stamp) -> Streamed:
    """Raises: OSError for a failed stream, PlanMismatch when the plan changed meanwhile."""
    if stream.error or not stream.times:
        raise OSError(f"a stream failed: {stream.error or 'no token came'}")
    if stream.plan_hash != stamp.plan_hash:
        raise PlanMismatch(
            f"the service's plan changed from {stamp.plan_hash} to {stream.plan_hash} meanwhile"
        )
    return stream
