"""Chat through Redis, Celery and a worker process with a scripted engine."""

from __future__ import annotations

import asyncio
import json
import signal
import time

import pytest

from tests.workers.scripted import dies_with_message
from workers.app import send

# Times of the gateway's side; the scripted worker has the same in `scripted.FAST_CHAT`.
from workers.chat.stream import ChatTiming, cancel_key
from workers.client import Client, NoWorker
from workers.presence import worker_id
from workers.protocol import ChatMessage, ChatParams, ChatRequest

TIMING = ChatTiming(
    alive_ttl_s=2, alive_refresh_s=0.3, alive_grace_s=1.0, watch_s=0.05, silence_s=0.5
)


@pytest.fixture(scope="module")
def served(place_of_module):
    place_of_module.worker("llm")
    return place_of_module


def talk(place, what, *, timing=TIMING):
    """Run `what(client)` on an event loop of its own."""

    async def main():
        client = Client.connect(place.settings, timing=timing)
        try:
            return await what(client)
        finally:
            await client.aclose()

    return asyncio.run(main())


def request(chat_id, **script):
    return ChatRequest(
        id=f"chatcmpl-{chat_id}",
        model="scripted-chat",
        messages=(ChatMessage(role="user", content=json.dumps(script)),),
        params=ChatParams(),
    )


async def open_chat(client, asked):
    """The events of an answer; a reader that stops early cancels it."""
    queue = asyncio.Queue()
    task = asyncio.create_task(client.run_chat(asked, lambda e: [*map(queue.put_nowait, e)]))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (event := await queue.get()) is not None:
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def answer(client, asked):
    """The joined text and the last event."""
    text, last = "", None
    async for event in open_chat(client, asked):
        if event.type == "delta":
            assert last is None
            text += event.text
        else:
            last = event
    return text, last


def expected(prefix, num):
    return "".join(f"{prefix}{n} " for n in range(num))


def test_an_answer_has_its_text_reason_and_usage(served):
    async def what(client):
        return [event async for event in open_chat(client, request("one", prefix="a", num=7))]

    events = talk(served, what)
    assert "".join(e.text for e in events[:-1]) == expected("a", 7)
    assert [e.finish_reason for e in events[:-1]] == [None] * 6 + ["length"]
    assert sum(e.num_tokens for e in events[:-1]) == 7
    done = events[-1]
    assert (done.type, done.prompt_tokens, done.completion_tokens) == ("done", 3, 7)
    assert done.cached_tokens == 1


def test_32_streams_at_once_lose_nothing(served):
    async def what(client):
        asked = [request(f"many{n}", prefix=f"s{n}-", num=60, token_s=0.005) for n in range(32)]
        return await asyncio.gather(*(answer(client, one) for one in asked))

    for n, (text, last) in enumerate(talk(served, what)):
        assert text == expected(f"s{n}-", 60)
        assert last.type == "done"


def test_the_first_token_comes_soon(served):
    async def what(client):
        await answer(client, request("warm"))
        waits = []
        for n in range(15):
            started = time.perf_counter()
            async for _ in open_chat(client, request(f"soon{n}", num=1)):
                waits.append(time.perf_counter() - started)
                break
        return sorted(waits)

    # About 7 ms on a quiet machine; the bound only catches a wait for a poll or a time-out.
    assert talk(served, what)[7] < 0.25


def test_a_consumer_that_stops_cancels_the_request(served):
    async def what(client):
        events = open_chat(client, request("stopped", num=10_000, token_s=0.02))
        async for _ in events:
            break
        await events.aclose()

    talk(served, what)
    served.wait_for(
        "the engine stops it",
        lambda: any(line.startswith("cancelled chatcmpl-stopped ") for line in served.lines()),
        10,
    )
    with served.redis_connection() as redis:
        assert redis.exists(cancel_key("chatcmpl-stopped"))


def test_a_reader_that_vanished_cancels_the_request(served):
    async def what(client):
        events = open_chat(client, request("vanished", num=10_000, token_s=0.02))
        await anext(events)
        # The key is no longer refreshed, as when the gateway was killed.
        for task in asyncio.all_tasks():
            if task.get_name().startswith("chat-"):
                task.cancel()
        await asyncio.to_thread(
            served.wait_for,
            "the engine stops it",
            lambda: any(line.startswith("cancelled chatcmpl-vanished ") for line in served.lines()),
            20,
        )

    talk(served, what)


def test_a_slow_reader_stalls_nobody(served):
    async def what(client):
        slow = open_chat(client, request("slow", prefix="x", num=3000))
        await anext(slow)
        started = time.perf_counter()
        quick = await answer(client, request("quick", prefix="q", num=50, token_s=0.005))
        waited_s = time.perf_counter() - started
        rest = "".join([e.text async for e in slow if e.type == "delta"])
        return quick, waited_s, rest

    (text, _), waited_s, rest = talk(served, what)
    assert text == expected("q", 50)
    assert waited_s < 10
    assert rest == expected("x", 3000).removeprefix("x0 ")


@pytest.mark.parametrize(
    ("do", "status", "code", "param"),
    [
        ("long", 400, "context_length_exceeded", "messages"),
        ("invalid", 400, None, "top_k"),
        ("full", 429, "queue_full", None),
        ("break", 500, "engine_error", None),
        ("late", 408, "deadline_exceeded", None),
    ],
)
def test_errors_become_statuses(served, do, status, code, param):
    _, last = talk(served, lambda client: answer(client, request(f"e-{do}", do=do)))
    assert (last.type, last.status, last.code, last.param) == ("failed", status, code, param)
    assert last.message


def test_a_message_delivered_twice_is_answered_once(served):
    async def what(client):
        asked = request("twice", prefix="a", num=40, token_s=0.01)
        events = open_chat(client, asked)
        first = await anext(events)
        send(client._app, "llm", "scripted-chat", asked.id)
        return first.text + "".join([e.text async for e in events if e.type == "delta"])

    assert talk(served, what) == expected("a", 40)
    assert served.runs("submit chatcmpl-twice") == 1


def test_no_worker_is_an_error_before_the_first_event(place):
    with pytest.raises(NoWorker):
        talk(place, lambda client: answer(client, request("nobody")))


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_its_answers(place):
    process = place.worker("llm")

    async def what(client):
        stuck = asyncio.create_task(answer(client, request("dies", do="kill")))
        gone = lambda: process.poll() is not None  # noqa: E731
        await asyncio.to_thread(place.wait_for, "the worker is gone", gone)
        # What the supervisor does at once; otherwise the row is too old after 20 s.
        place.client.store.workers.forget(worker_id("llm", process.pid))
        await asyncio.to_thread(place.worker, "llm")
        return await asyncio.wait_for(stuck, 30)

    try:
        _, last = talk(place, what)
    except NoWorker:
        return
    assert (last.status, last.code) == (503, "worker_lost")


@pytest.mark.slow
def test_a_message_that_a_worker_took_along_is_sent_again(place):
    """Between the message, which the broker forgets, and the request, which is still there."""
    processes = [place.worker("llm"), place.worker("llm")]
    trap = dies_with_message(place.log)
    trap.touch()

    async def what(client):
        return await asyncio.wait_for(answer(client, request("along", prefix="a", num=7)), 30)

    text, last = talk(place, what)
    assert (text, last.type) == (expected("a", 7), "done")
    assert not trap.exists()
    place.wait_for("one is gone", lambda: sum(p.poll() is not None for p in processes) == 1)
    assert place.runs("submit chatcmpl-along") == 1


@pytest.mark.slow
def test_a_dead_engine_ends_the_worker_with_an_error(place):
    process = place.worker("llm")
    text, last = talk(place, lambda c: answer(c, request("d", prefix="a", do="die")))
    assert text == expected("a", 2)
    assert (last.status, last.code) == (503, "engine_dead")
    assert process.wait(30) == 1


@pytest.mark.slow
def test_sigterm_lets_running_answers_end(place):
    process = place.worker("llm")

    async def what(client):
        events = open_chat(client, request("going", prefix="a", num=100, token_s=0.02))
        first = await anext(events)
        process.send_signal(signal.SIGTERM)
        return first.text + "".join([e.text async for e in events if e.type == "delta"])

    assert talk(place, what) == expected("a", 100)
    assert process.wait(30) == 0
