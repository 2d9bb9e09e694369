"""Where the time of gateway and queue goes: the hops of one request, CPU time for each token.

The hops are read off Redis, where every one of them leaves a command, so that the service runs
as it always does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.llm.contest import say
from benchmarks.llm.contestants import Contestant, Setting, our_contestant
from benchmarks.llm.cpu_time import cpu_seconds
from benchmarks.llm.http_stream import Service
from benchmarks.llm.options import LLMOptions
from benchmarks.llm.process import EngineAbsent, EngineFailed
from benchmarks.llm.redis_watch import RedisWatch, Seen
from benchmarks.llm.rows import Row, Stamp, blank, with_samples
from benchmarks.llm.service_process import RunningService, running_service
from benchmarks.llm.service_rows import check_plan, model_of, prompt_texts
from benchmarks.llm.statistics import ttft_s
from benchmarks.llm.workload import Prose

_STREAMS, _TOKENS = 32, 64
_ANSWER_TOKENS = 4
_RUN_LIMIT_S = 120.0
# What ends each hop: a Redis command, how its key begins, what else it holds; the last is the
# caller's.
_HOPS = (
    ("gateway: HTTP, key, body → request in Redis", "SET", "chat:", b""),
    ("gateway: message on the queue", "LPUSH", "llm.", b""),
    ("worker: message taken, request fetched", "GETDEL", "chat:", b""),
    ("worker: prompt and first token, written", "XADD", "reply:", b"delta"),
)
_LAST_HOP = "gateway: stream read → caller has the token"


def hop_rows(
    options: LLMOptions, setting: Setting, prose: Prose, stamp: Stamp, vocabulary: Sequence[str]
) -> list[Row]:
    """Rows of a service started here: hops in ms, CPU in µs for each token of 32 streams."""
    text = prompt_texts(prose, vocabulary)
    bare = our_contestant(setting, "bare", speculation="auto")
    try:
        with running_service(setting) as running:
            model = model_of(running.service, options.model)
            service = Service(url=running.service.url, api_key=running.service.api_key, model=model)
            check_plan(service, options.plan_hash)
            for index in range(3):
                service.stream(text(f"warm/{index}"), _ANSWER_TOKENS)
            rows = _hops(running, service, text, stamp, bare, 6 if options.quick else 24)
            return rows + _cpu(running, service, text, stamp, 2 if options.quick else 4)
    except (OSError, EngineAbsent, EngineFailed) as error:
        say(f"hops: {error}")
        return [blank("hops", "", stamp) | {"error": str(error)}]
    finally:
        bare.stop()


def _hops(
    running: RunningService,
    service: Service,
    text: Callable[[str], str],
    stamp: Stamp,
    bare: Contestant,
    count: int,
) -> list[Row]:
    names = [name for name, *_ in _HOPS] + [_LAST_HOP]
    samples: dict[str, list[float]] = {name: [] for name in [*names, "engine alone"]}
    bare.ask("run", timeout_s=_RUN_LIMIT_S, requests=[[text("warm/0"), _ANSWER_TOKENS, 0.0]])
    for index in range(count):
        prompt = text(f"hops/{index}")
        [answer] = bare.ask("run", timeout_s=_RUN_LIMIT_S, requests=[[prompt, _ANSWER_TOKENS, 0.0]])
        samples["engine alone"].append(1e3 * ttft_s(answer))
        watch = RedisWatch(running.redis_url.removeprefix("unix://"))
        to_epoch_s = time.time() - time.perf_counter()
        streamed = service.stream(prompt, _ANSWER_TOKENS)
        seen = watch.stop()
        if streamed.error or not streamed.times:
            raise OSError(f"a stream failed: {streamed.error or 'no token came'}")
        sent, received = streamed.sent + to_epoch_s, streamed.times[0] + to_epoch_s
        for name, hop_s in zip(names, hop_times(sent, received, seen), strict=True):
            samples[name].append(1e3 * hop_s)
    rows = [with_samples(blank(f"hop {name}", "ms", stamp), v) for name, v in samples.items()]
    for row in rows:
        say(f"  {row['row']}: {row['ours']:.2f} ms")
    return rows


def hop_times(sent: float, received: float, seen: Sequence[Seen]) -> list[float]:
    """Seconds of each hop of one request that was alone. Raises: OSError for a missing hop."""
    times, commands = [sent], iter([s for s in seen if s.at >= sent])
    for name, verb, prefix, part in _HOPS:
        at = next((s.at for s in commands if _ends(s, verb, prefix, part)), None)
        if at is None:
            raise OSError(f"no {verb} {prefix}… for the hop {name!r}")
        times.append(at)
    times.append(received)
    return [after - before for before, after in itertools.pairwise(times)]


def _ends(seen: Seen, verb: str, prefix: str, part: bytes) -> bool:
    return seen.verb == verb and seen.key.startswith(prefix) and part in seen.rest


def _cpu(
    running: RunningService,
    service: Service,
    text: Callable[[str], str],
    stamp: Stamp,
    rounds: int,
) -> list[Row]:
    samples: dict[str, list[float]] = {}
    service.streams([text(f"cpu/warm/{n}") for n in range(_STREAMS)], _ANSWER_TOKENS)
    for index in range(rounds):
        texts = [text(f"cpu/{index}/{stream}") for stream in range(_STREAMS)]
        before, client_s = cpu_seconds(running.pid), time.process_time()
        streams = service.streams(texts, _TOKENS)
        after, client_s = cpu_seconds(running.pid), time.process_time() - client_s
        if errors := [s.error for s in streams if s.error]:
            raise OSError(f"a stream failed: {errors[0]}")
        tokens = sum(s.completion_tokens for s in streams)
        for part, seconds in _spent(before, after, client_s).items():
            samples.setdefault(part, []).append(1e6 * seconds / tokens)
    rows = [
        with_samples(blank(f"CPU {part}, {_STREAMS} streams", "µs/token", stamp), values)
        for part, values in sorted(samples.items())
    ]
    for row in rows:
        say(f"  {row['row']}: {row['ours']:.1f} µs per token")
    return rows


def _spent(
    before: Mapping[str, float], after: Mapping[str, float], client_s: float
) -> dict[str, float]:
    parts = {part: seconds - before.get(part, 0.0) for part, seconds in after.items()}
    of_service = sum(s for part, s in parts.items() if part != "worker: engine")
    return parts | {"client": client_s, "all but engine and client": of_service}
