"""Streams whose events are pushed: order, the two ways to the socket, ends, and prepared lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.generation.text_line import TextLine
from service.http.pushed_stream import BODY_WRITER, PushedStream
from service.http.stream import KEEP_ALIVE, sse


class Caller:
    """Both ends of a response: what was sent, and when the caller leaves."""

    def __init__(self, takes: Callable[[int], bool] | None = None) -> None:
        """`takes(n)`: whether the body writer takes its n-th piece; None: there is no writer."""
        self.body, self.num_direct, self.is_whole = b"", 0, False
        self.has_left = asyncio.Event()
        self._takes = takes
        self.scope = {"extensions": {} if takes is None else {BODY_WRITER: self._write}}

    async def receive(self) -> dict[str, str]:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, object]) -> None:
        await asyncio.sleep(0)
        if message["type"] == "http.response.body":
            self.body += message["body"]
            self.is_whole = not message["more_body"]

    def _write(self, piece: bytes) -> bool:
        self.num_direct += 1
        if not self._takes(self.num_direct):
            return False
        self.body += piece
        return True


def stream(keep_alive_s: float = 60.0, closed: list[str] | None = None) -> PushedStream:
    log = [] if closed is None else closed
    return PushedStream(
        on_close=lambda: log.append("closed"), keep_alive_s=keep_alive_s, headers={}
    )


@given(
    st.lists(st.tuples(st.binary(min_size=1), st.integers(0, 3)), max_size=20),
    st.none() | st.sets(st.integers(1, 20)),
)
def test_pieces_leave_in_order_whichever_way_each_takes(pieces, refused):
    async def push() -> Caller:
        caller = Caller(None if refused is None else lambda n: n not in refused)
        response, log = stream(closed=(closed := [])), closed
        serving = asyncio.create_task(response(caller.scope, caller.receive, caller.send))
        for piece, pauses in pieces:
            response.write(piece)
            for _ in range(pauses):
                await asyncio.sleep(0)
        response.end(b"end")
        response.write(b"too late")
        await serving
        assert log == ["closed"]
        return caller

    caller = asyncio.run(push())
    assert caller.body == b"".join(piece for piece, _ in pieces) + b"end"
    assert caller.is_whole


def test_a_stream_ends_when_its_caller_leaves_and_when_it_is_cut_off():
    async def leave(how: str) -> tuple[list[str], bool]:
        closed: list[str] = []
        caller, response = Caller(lambda _: True), stream(closed=closed)
        serving = asyncio.create_task(response(caller.scope, caller.receive, caller.send))
        await asyncio.sleep(0.01)
        caller.has_left.set() if how == "leaves" else response.abort()
        await asyncio.wait([serving])
        return closed, isinstance(serving.exception(), ConnectionAbortedError)

    assert asyncio.run(leave("leaves")) == (["closed"], False)
    assert asyncio.run(leave("is cut off")) == (["closed"], True)


def test_silence_is_filled_and_nothing_else_is():
    async def listen() -> bytes:
        caller, response = Caller(), stream(keep_alive_s=0.05)
        serving = asyncio.create_task(response(caller.scope, caller.receive, caller.send))
        while caller.body.count(KEEP_ALIVE) < 2:
            await asyncio.sleep(0.01)
        response.end(b"end")
        await serving
        return caller.body

    body = asyncio.run(listen())
    assert body == KEEP_ALIVE * (len(body) // len(KEEP_ALIVE)) + b"end"


@given(st.text())
def test_a_prepared_line_is_the_line_of_its_chunk(text):
    def chunk(content: str) -> dict[str, object]:
        return {"model": 'a "b"\n', "choices": [{"delta": {"content": content}}], "usage": None}

    assert TextLine(chunk).fill(text) == sse(chunk(text))


def test_a_chunk_whose_hole_is_not_clear_is_no_template():
    with pytest.raises(AssertionError):
        TextLine(lambda text: {"model": "\0", "text": text})
