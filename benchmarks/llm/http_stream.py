"""A light client of the chat endpoint: streams with the time of every token.

Standard library and threads, since the client shares its cores with the service it measures.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PLAN_HEADER = "x-lanewise-plan"
_TIMEOUT_S = 300.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Where a service listens, and with which key and model it is asked."""

    url: str
    api_key: str
    model: str

    @property
    def headers(self) -> Mapping[str, str]:
        """Of every request."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **key}

    def connect(self) -> http.client.HTTPConnection:
        """A new connection; it opens with the first request."""
        parts = urlsplit(self.url)
        of = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return of(parts.netloc, timeout=_TIMEOUT_S)

    def get(self, path: str) -> dict[str, Any]:
        """A JSON answer. Raises: OSError, with the status, for anything but 200."""
        connection = self.connect()
        try:
            connection.request("GET", path, headers=dict(self.headers))
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise OSError(f"GET {self.url}{path}: {response.status} {body[:200]!r}")
            return json.loads(body)
        finally:
            connection.close()

    def stream(self, prompt: str, max_tokens: int, *, logprobs: bool = False) -> Streamed:
        """Ask greedily for exactly `max_tokens`; an error is told in the result."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if logprobs:
            body["logprobs"] = True
        result = Streamed(sent=time.perf_counter())
        connection = self.connect()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), dict(self.headers))
            response = connection.getresponse()
            result.plan_hash = response.headers.get(PLAN_HEADER, "")
            if response.status != 200:
                result.error = f"{response.status} {response.read(300)!r}"
            else:
                _read(response, result, logprobs)
        except (OSError, http.client.HTTPException, ValueError) as error:
            result.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        return result

    def streams(
        self, prompts: Sequence[str], max_tokens: int, *, logprobs: bool = False
    ) -> list[Streamed]:
        """All at once, a thread each."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            futures = [pool.submit(self.stream, p, max_tokens, logprobs=logprobs) for p in prompts]
            return [future.result() for future in futures]


def _read(response: http.client.HTTPResponse, result: Streamed, logprobs: bool) -> None:
    for line in response:
        if not line.startswith(b"data: "):
            continue
        payload = line[6:].strip()
        if payload == b"[DONE]":
            result.is_done = True
            return
        _take(json.loads(payload), result, logprobs)


def _take(chunk: Mapping[str, Any], result: Streamed, logprobs: bool) -> None:
    now = time.perf_counter()
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
        result.times += [now] * (len(entries) if logprobs else bool(piece))
