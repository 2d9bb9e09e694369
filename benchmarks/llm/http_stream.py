"""A light client of the chat endpoint: streams with the time of every token.

The client shares its cores with the service it measures, so it only stamps what arrives, on one
thread; chunks and JSON are read when all streams have ended (`stream_reading.py`).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.llm.stream_reading import PLAN_HEADER, Piece, Streamed, read_answer

__all__ = ["PLAN_HEADER", "Service", "Streamed"]
_TIMEOUT_S = 300.0
_PATH = "/v1/chat/completions"


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

    def get(self, path: str) -> dict[str, Any]:
        """A JSON answer. Raises: OSError, with the status, for anything but 200."""
        parts = urlsplit(self.url)
        of = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = of(parts.netloc, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", parts.path + path, headers=dict(self.headers))
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise OSError(f"GET {self.url}{path}: {response.status} {body[:200]!r}")
            return json.loads(body)
        finally:
            connection.close()

    def stream(self, prompt: str, max_tokens: int, *, logprobs: bool = False) -> Streamed:
        """Ask greedily for exactly `max_tokens`; an error is told in the result."""
        return self.streams([prompt], max_tokens, logprobs=logprobs)[0]

    def streams(
        self, prompts: Sequence[str], max_tokens: int, *, logprobs: bool = False
    ) -> list[Streamed]:
        """All at once, a connection each."""
        requests = [self._request(prompt, max_tokens, logprobs) for prompt in prompts]

        async def exchange_all() -> list[_Exchange]:
            return await asyncio.gather(*(_exchange(self.url, request) for request in requests))

        return [
            read_answer(exchange.sent, exchange.pieces, exchange.error, logprobs=logprobs)
            for exchange in asyncio.run(exchange_all())
        ]

    def _request(self, prompt: str, max_tokens: int, logprobs: bool) -> bytes:
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body = json.dumps(fields | ({"logprobs": True} if logprobs else {})).encode()
        parts = urlsplit(self.url)
        headers = {
            "Host": parts.netloc, **self.headers,
            "Content-Length": str(len(body)), "Connection": "close",
        }  # fmt: skip
        lines = [f"POST {parts.path}{_PATH} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body


class _Exchange(asyncio.Protocol):
    """One request and the pieces of its answer, each with the time it came."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.sent = time.perf_counter()
        self.pieces: list[Piece] = []
        self.error = ""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = "" if exc is None else f"{type(exc).__name__}: {exc}"
        if not self.ended.done():
            self.ended.set_result(None)


async def _exchange(url: str, request: bytes) -> _Exchange:
    parts = urlsplit(url)
    is_safe = parts.scheme == "https"
    port = parts.port or (443 if is_safe else 80)
    exchange = _Exchange(request)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: exchange, parts.hostname or "", port,
                ssl=ssl.create_default_context() if is_safe else None,
            )  # fmt: skip
            await exchange.ended
    except OSError as error:
        exchange.error = f"{type(error).__name__}: {error}"
    return exchange
