"""A listening gateway: the official client, hang-ups, slow callers."""

# pyright: reportDeprecated=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from gateway_kit import CLIP, LLM, VIDEO, FakeClient, picture_bytes, render_next, words
from openai import APIError, AuthenticationError, BadRequestError, NotFoundError, OpenAI

from service.__main__ import bind, connect
from service.http.protocol import DeadlineProtocol
from workers.deployment.start_checks import StartRefused
from workers.protocol import ChatDelta, ChatFailed
from workers.settings import Settings
from workers.store import Store

HELLO: Any = [{"role": "user", "content": "Hi"}]


class QuickDeadlines(DeadlineProtocol):
    headers_s = 0.6
    body_s = 0.6


@pytest.fixture
def port(app: FastAPI) -> Iterator[int]:
    config = uvicorn.Config(
        app, port=0, http=QuickDeadlines, ws="none", log_config=None, access_log=False,
        h11_max_incomplete_event_size=32 * 2**10, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def openai(port: int, user_key: str) -> OpenAI:
    return OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key=user_key,
        max_retries=0,
        _strict_response_validation=True,
    )


def test_chat_and_models(openai: OpenAI, client: FakeClient) -> None:
    assert {model.id for model in openai.models.list()} == {LLM, VIDEO}
    assert openai.models.retrieve(LLM).owned_by == "lanewise"
    client.script = words("Hel", "lo ", "😀", n=2)
    whole = openai.chat.completions.create(model=LLM, messages=HELLO, n=2)
    stream = openai.chat.completions.create(
        model=LLM, messages=HELLO, n=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    for choice in whole.choices:
        joined = "".join(
            c.choices[0].delta.content or ""
            for c in chunks
            if c.choices and c.choices[0].index == choice.index
        )
        assert joined == choice.message.content == "Hello 😀"
    assert chunks[-1].usage == whole.usage
    assert whole._request_id


def test_errors_become_the_clients_own(openai: OpenAI, client: FakeClient, port: int) -> None:
    stranger = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-no", max_retries=0)
    with pytest.raises(AuthenticationError):
        stranger.models.list()
    with pytest.raises(NotFoundError) as missing:
        openai.chat.completions.create(model="nobody", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(BadRequestError) as bad:
        openai.chat.completions.create(model=LLM, messages=HELLO, temperature=9)
    assert bad.value.param == "temperature"
    client.script = [
        ChatDelta(index=0, text="a", num_tokens=1),
        ChatFailed(status=500, code="engine_died", message="it broke"),
    ]
    with pytest.raises(APIError) as broken:
        list(openai.chat.completions.create(model=LLM, messages=HELLO, stream=True))
    assert broken.value.code == "engine_died"


def test_videos_and_files(openai: OpenAI, store: Store) -> None:
    video = openai.videos.create(
        prompt="pan", model=VIDEO, seconds="4", size="1280x720",
        input_reference=("報告.png", picture_bytes(), "image/png"),
    )  # fmt: skip
    with pytest.raises(NotFoundError) as early:
        openai.videos.download_content(video.id)
    assert early.value.code == "video_not_ready"
    render_next(store)
    assert openai.videos.poll(video.id).status == "completed"
    assert openai.videos.download_content(video.id).read() == CLIP
    assert openai.videos.download_content(video.id, variant="thumbnail").read()[:4] == b"RIFF"
    assert [listed.id for listed in openai.videos.list()] == [video.id]
    remix = openai.videos.remix(video.id, prompt="zoom")
    assert remix.remixed_from_video_id == video.id
    assert openai.videos.delete(video.id).deleted
    with pytest.raises(BadRequestError) as needed:  # the remix still waits for the same picture
        openai.files.delete(next(iter(openai.files.list(purpose="vision"))).id)
    assert needed.value.code == "file_in_use"
    other = picture_bytes((32, 32))
    kept = openai.files.create(file=("a.png", BytesIO(other)), purpose="vision")
    assert openai.files.content(kept.id).read() == other
    assert kept.id in {listed.id for listed in openai.files.list(purpose="vision")}
    assert openai.files.delete(kept.id).deleted


def test_a_lost_answer_does_not_render_twice(port: int, user_key: str, store: Store) -> None:
    url = f"http://127.0.0.1:{port}/v1/videos"
    files = {"input_reference": ("a.png", picture_bytes())}
    ids = set()
    for attempt in ("0", "1", "2"):
        headers = {"Authorization": f"Bearer {user_key}", "x-stainless-retry-count": attempt}
        ids.add(httpx.post(url, data={"prompt": "x"}, files=files, headers=headers).json()["id"])
    assert len(ids) == 1
    assert len(store.jobs.list().jobs) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_hangs_up_frees_the_worker(
    port: int, user_key: str, client: FakeClient, stream: bool
) -> None:
    delta = ChatDelta(index=0, text="a", num_tokens=1)
    client.script = [delta, *[step for _ in range(200) for step in (0.05, delta)]]
    body = json.dumps({"model": LLM, "messages": HELLO, "stream": stream}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {user_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(head.encode() + body)
        if stream:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        time.sleep(0.4)
        assert client.closed == []
    wait_for(lambda: bool(client.closed))
    assert client.closed == [client.requests[0].id]


def test_a_silent_worker_gets_keep_alives(
    port: int, user_key: str, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.generation.turn._FIRST_EVENT_S", 0.3)
    monkeypatch.setattr("service.generation.turn.KEEP_ALIVE_S", 0.1)
    client.script = [1.0, *words("late")]
    body = {"model": LLM, "messages": HELLO, "stream": True}
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=10,
        headers={"Authorization": f"Bearer {user_key}"},
    )  # fmt: skip
    assert answer.text.count(": keep-alive") >= 3
    assert '"content":"late"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


def talk(port: int, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Send pieces over a bare socket, and read until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        got = b""
        with contextlib.suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause_s)
            while data := connection.recv(65536):
                got += data
        return got


def test_a_stream_is_the_same_with_and_without_chunks(
    port: int, user_key: str, client: FakeClient
) -> None:
    client.script = [0.05, *words("one", "two", "drei \u00fc")]
    body = json.dumps({"model": LLM, "messages": HELLO, "stream": True}).encode()
    bodies: list[bytes] = []
    for version in ("1.0", "1.1"):
        head = (
            f"POST /v1/chat/completions HTTP/{version}\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {user_key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        answer = talk(port, head.encode() + body)
        headers, _, rest = answer.partition(b"\r\n\r\n")
        assert (b"chunked" in headers) == (version == "1.1")
        bodies.append(_without_frames(rest) if version == "1.1" else rest)
    one, other = ([line for line in b.splitlines() if b'"content":"' in line] for b in bodies)
    said = [[line.partition(b'"choices"')[2] for line in lines] for lines in (one, other)]
    assert said[0] == said[1]
    assert all(b.endswith(b"data: [DONE]\n\n") for b in bodies)


def _without_frames(chunked: bytes) -> bytes:
    parts: list[bytes] = []
    while True:
        size, _, chunked = chunked.partition(b"\r\n")
        if int(size, 16) == 0:
            return b"".join(parts)
        parts.append(chunked[: int(size, 16)])
        chunked = chunked[int(size, 16) + 2 :]


@pytest.mark.parametrize(
    "head",
    [b"GET /healthz HTTP/1.1\r\n", b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n"],
)
def test_slow_callers_are_cut_off(port: int, head: bytes) -> None:
    started = time.monotonic()
    talk(port, head, *[b"x"] * 10, pause_s=0.15)
    assert time.monotonic() - started < 4
    assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def test_idle_sockets_do_not_block_others(port: int) -> None:
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    started = time.monotonic()
    assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    assert time.monotonic() - started < 2
    for each in sockets:
        each.close()


def test_overlong_headers_and_garbage(port: int) -> None:
    long = talk(
        port,
        b"GET /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ",
        b"x" * 65536,
        b"\r\n\r\n",
        pause_s=0.1,
    )
    garbage = talk(port, b"\x16\x03\x01\x02\x00\r\n\r\n")
    assert long.split(b"\r\n")[0].split()[1] in {b"401", b"431"}
    assert b" 400 " in garbage.split(b"\r\n")[0]
    assert json.loads(garbage.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


def test_a_longer_body_than_declared(port: int, user_key: str) -> None:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {user_key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n"
    )
    answer = talk(port, head.encode() + b"{" * (2 * 2**20))
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait up to ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_event_streams_over_a_socket(port: int, app: FastAPI, user_key: str, store: Store) -> None:
    base, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {user_key}"}
    seen: list[str] = []

    def read() -> None:
        with httpx.stream("GET", f"{base}/events", headers=headers, timeout=10) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]).get("status", "deleted"))
                    if seen[-1] == "deleted":
                        return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_for(lambda: bool(app.state.gateway.events._listeners))
    job = httpx.post(
        f"{base}/jobs", data={"prompt": "x"}, files={"image": picture_bytes()}, headers=headers
    ).json()
    wait_for(lambda: seen == ["queued"])
    render_next(store)
    wait_for(lambda: seen[-1] == "succeeded")
    httpx.delete(f"{base}/jobs/{job['id']}", headers=headers)
    reader.join(10)
    assert [state for state in seen if state != "running"] == ["queued", "succeeded", "deleted"]


def test_a_taken_port_is_said_plainly() -> None:
    listener = bind("127.0.0.1", 0)
    with pytest.raises(StartRefused, match=r"is taken.*LANEWISE_PORT"):
        bind("127.0.0.1", listener.getsockname()[1])
    listener.close()


@pytest.mark.parametrize(
    ("change", "words_"),
    [
        ({"redis_url": ""}, "LANEWISE_REDIS_URL"),
        ({"auth": "off", "host": "0.0.0.0"}, "auth is off"),
        ({"host": "0.0.0.0"}, "lanewise keys create"),
    ],
)
def test_unsafe_starts_are_refused(settings: Settings, change: dict[str, str], words_: str) -> None:
    settings.resolved_data_dir.mkdir(parents=True)
    with pytest.raises(StartRefused, match=words_):
        connect(settings.model_copy(update=change))


def test_streams_end_at_shutdown(app: FastAPI) -> None:
    async def run() -> bool:
        events = app.state.gateway.events
        listener = events.listen(key_id=None)
        asyncio.get_running_loop().call_later(0.05, events.hang_up)
        await listener.take(5)
        return listener.is_over

    assert asyncio.run(run())
