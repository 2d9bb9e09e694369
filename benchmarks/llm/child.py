"""One engine in a process of its own: orders come as JSON lines, answers go back the same way.

Needs the standard library alone, so that it runs in a peer's own environment. What an engine
prints goes to standard error; the answers keep the original standard output to themselves.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

# (request id, tokens that came at once, when: seconds of `time.perf_counter`)
Produced = tuple[int, list[int], float]
Handler = Callable[..., Any]


class Absent(Exception):
    """The engine cannot run here; the message says what is missing."""


class Contender(Protocol):
    """An engine as the benchmark drives it: greedy, ignoring the end-of-sequence tokens.

    `facts` holds at least `version`, `form` (how it serves several requests) and
    `reuses_prefixes`. `num_cached` gives the prompt tokens not computed again, where it is known.
    """

    facts: dict[str, Any]

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def add(self, request_id: int, prompt: Sequence[int], max_tokens: int) -> None:
        """Queue a request."""
        ...

    def step(self) -> list[Produced]:
        """Advance; an engine without steps serves all that wait to the end."""
        ...

    def num_cached(self, request_id: int) -> int | None:
        """Prompt tokens of an ended request that came from the cache."""
        ...


def drive(
    contender: Contender,
    requests: Sequence[Sequence[Any]],
    window: int | None = None,
    steps_s: list[float] | None = None,
) -> list[dict[str, Any]]:
    """Serve (prompt, max_tokens, at) requests; `at` in seconds from now, in rising order.

    With `window` no more than that many are under way, and each counts as sent when it is added.
    `steps_s` takes the time of every step.

    Returns: for each request its tokens, the time of each, when it was sent, cached tokens.
    """
    answers: list[dict[str, Any]] = [
        {"tokens": [], "times": [], "sent": at, "cached": None} for _, _, at in requests
    ]
    start, next_up, num_open = time.perf_counter(), 0, 0
    while next_up < len(requests) or contender.has_work:
        now = time.perf_counter() - start
        while next_up < len(requests) and (
            requests[next_up][2] <= now if window is None else num_open < window
        ):
            prompt, max_tokens, _ = requests[next_up]
            if window is not None:
                answers[next_up]["sent"] = time.perf_counter() - start
            contender.add(next_up, prompt, max_tokens)
            next_up, num_open = next_up + 1, num_open + 1
        if not contender.has_work:
            time.sleep(max(requests[next_up][2] - now, 0.0))
            continue
        begin = time.perf_counter()
        for request_id, tokens, at in contender.step():
            answer = answers[request_id]
            answer["tokens"] += tokens
            answer["times"] += [at - start] * len(tokens)
            if len(answer["tokens"]) >= requests[request_id][1]:
                answer["cached"] = contender.num_cached(request_id)
                num_open -= 1
        if steps_s is not None:
            steps_s.append(time.perf_counter() - begin)
    return answers


def memory(peak: bool = True) -> dict[str, int]:
    """Resident bytes of this process now and at its peak."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    names = {"rss_bytes": "VmRSS"} | ({"peak_bytes": "VmHWM"} if peak else {})
    return {name: int(lines[key].split()[0]) * 1024 for name, key in names.items()}


def pin(num_threads: int) -> None:
    """Keep this process on the first `num_threads` cores that it may use."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:num_threads])


def options() -> dict[str, Any]:
    """The engine's options: JSON in the first argument. Pins the process to its threads."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    pin(found["threads"])
    return found


def serve_contender(load: Callable[[], Contender]) -> None:
    """Load an engine, report its facts and the time that took, then run orders."""
    held: list[Contender] = []

    def opened() -> dict[str, Any]:
        begin = time.perf_counter()
        held.append(load())
        return {"load_s": time.perf_counter() - begin, **held[0].facts}

    def run(requests: list[list[Any]], window: int | None = None) -> list[dict[str, Any]]:
        return drive(held[0], requests, window)

    serve(
        {"load": opened, "run": run, "memory": memory, "steady": lambda **o: steady(held[0], **o)}
    )


def steady(
    contender: Contender, requests: list[list[Any]], window: int, head: int
) -> dict[str, Any]:
    """Many short requests: resident memory after `head` requests and at the end, and step times.

    Returns: `rss_bytes` (after `head`, at the end) and the times of all steps, in order.
    """
    steps_s: list[float] = []
    drive(contender, requests[:head], window, steps_s)
    resident = [memory(peak=False)["rss_bytes"]]
    for begin in range(head, len(requests), head):
        drive(contender, requests[begin : begin + head], window, steps_s)
        resident.append(memory(peak=False)["rss_bytes"])
    return {"rss_bytes": resident, "steps_s": steps_s}


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer orders `{"do": name, …}` until the input ends. Only this function writes answers."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for order in _orders():
        name = order.pop("do")
        try:
            answer = {"ok": handlers[name](**order)}
        except (Absent, ImportError) as error:
            answer = {"absent": f"{error}"}
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is its answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


def _orders() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)
