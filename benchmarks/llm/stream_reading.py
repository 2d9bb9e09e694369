"""What came over a socket → a streamed answer, with the time at which each token was whole."""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PLAN_HEADER = "x-lanewise-plan"
# When it came (seconds of `time.perf_counter`), and the bytes.
Piece = tuple[float, bytes]
_CRLF = b"\r\n"


@dataclass(slots=True, kw_only=True)
class Streamed:
    """What came of one stream. Times in seconds of `time.perf_counter`.

    `times` has one entry per token: with `logprobs` exactly, else one per piece of text.
    """

    sent: float = 0.0
    times: list[float] = field(default_factory=list[float])
    text: str = ""
    completion_tokens: int = 0
    finish_reason: str | None = None
    is_done: bool = False
    plan_hash: str = ""
    error: str = ""


class Malformed(ValueError):
    """The bytes are no HTTP answer, or break off within one."""


def read_answer(sent: float, pieces: Sequence[Piece], error: str, *, logprobs: bool) -> Streamed:
    """The answer to a request of the time `sent`; `error` says how its connection failed."""
    result = Streamed(sent=sent, error=error)
    if error:
        return result
    try:
        raw = _Timed.of(pieces)
        status, headers, begin = _head(raw.data)
        result.plan_hash = headers.get(PLAN_HEADER, "")
        body = _dechunked(raw, begin) if "transfer-encoding" in headers else raw.after(begin)
        if status != 200:
            result.error = f"{status} {body.data[:300]!r}"
        else:
            _read_events(body, result, logprobs)
    except ValueError as broken:
        result.error = f"{type(broken).__name__}: {broken}"
    return result


@dataclass(frozen=True, slots=True)
class _Timed:
    """Bytes, with the time at which those before each of `ends` were there."""

    data: bytes
    ends: Sequence[int]
    times: Sequence[float]

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> _Timed:
        ends = list(itertools.accumulate(len(data) for _, data in pieces))
        return cls(b"".join(data for _, data in pieces), ends, [at for at, _ in pieces])

    def time_of(self, end: int) -> float:
        """When the bytes before `end` were there."""
        return self.times[bisect_left(self.ends, end)]

    def after(self, begin: int) -> _Timed:
        return _Timed(self.data[begin:], [end - begin for end in self.ends], self.times)


def _head(data: bytes) -> tuple[int, dict[str, str], int]:
    """Status, headers with lower-case names, and where the body begins."""
    head, found, _ = data.partition(_CRLF * 2)
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not found or len(words) < 2 or not words[1].isdecimal():
        raise Malformed(f"no head of an HTTP answer in {data[:80]!r}")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return int(words[1]), headers, len(head) + len(found)


def _dechunked(raw: _Timed, begin: int) -> _Timed:
    """The body without its chunks' frames; a chunk counts as there when its last byte is."""
    parts: list[bytes] = []
    times: list[float] = []
    while True:
        line_end = raw.data.find(_CRLF, begin)
        if line_end < 0:
            raise Malformed("the answer breaks off before its last chunk")
        size = int(raw.data[begin:line_end], 16)
        if size == 0:
            ends = list(itertools.accumulate(map(len, parts)))
            return _Timed(b"".join(parts), ends, times)
        begin, end = line_end + 2, line_end + 2 + size
        if end > len(raw.data):
            raise Malformed("the answer breaks off within a chunk")
        parts.append(raw.data[begin:end])
        times.append(raw.time_of(end))
        begin = end + 2


def _events(body: _Timed) -> Iterator[tuple[float, bytes]]:
    end = 0
    for line in body.data.splitlines(keepends=True):
        end += len(line)
        if line.startswith(b"data: "):
            yield body.time_of(end), line[6:].strip()


def _read_events(body: _Timed, result: Streamed, logprobs: bool) -> None:
    for at, payload in _events(body):
        if payload == b"[DONE]":
            result.is_done = True
            return
        _take(json.loads(payload), at, result, logprobs)


def _take(chunk: Mapping[str, Any], at: float, result: Streamed, logprobs: bool) -> None:
    if "error" in chunk:
        result.error = str(chunk["error"])[:300]
        return
    if chunk.get("usage"):
        result.completion_tokens = chunk["usage"]["completion_tokens"]
    for choice in chunk["choices"]:
        piece = choice["delta"].get("content") or ""
        result.text += piece
        result.finish_reason = choice["finish_reason"] or result.finish_reason
        entries = ((choice.get("logprobs") or {}).get("content") or ()) if logprobs else ()
        result.times += [at] * (len(entries) if logprobs else bool(piece))
