"""The engine's thread: many callers, cancellation, and an honest death."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llm_engine.engine import LLMEngine
from llm_engine.errors import EngineDead, InvalidRequest, QueueFull, RequestFailed
from llm_engine.loop import EngineLoop, RequestHandle
from llm_engine.types import Finished, GenerationRequest, TextDelta

Build = Callable[..., LLMEngine]
Make = Callable[..., GenerationRequest]


@pytest.fixture
def start(tiny_engine: Build) -> Iterator[Callable[..., EngineLoop]]:
    loops: list[EngineLoop] = []

    def build(**settings: Any) -> EngineLoop:
        loops.append(EngineLoop(tiny_engine(**settings)))
        loops[-1].start()
        return loops[-1]

    yield build
    for loop in loops:
        loop.stop()


def _tokens(handle: RequestHandle) -> list[int]:
    return [t for event in handle.events() if isinstance(event, TextDelta) for t in event.token_ids]


def test_callers_on_many_threads_get_their_own_answers(
    start: Callable[..., EngineLoop], tiny_engine: Build, make_request: Make, tokens_of: Any
) -> None:
    requests = [
        make_request(f"r{i}", bytes([i, i + 1]), temperature=0.0, max_tokens=10, ignore_eos=True)
        for i in range(12)
    ]
    expected = tokens_of(tiny_engine().generate(requests))
    loop = start(max_num_seqs=4)
    answers: dict[str, list[int]] = {}

    def call(request: GenerationRequest) -> None:
        answers[request.request_id] = _tokens(loop.submit(request))

    threads = [threading.Thread(target=call, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == expected


def test_faults_of_the_caller_are_raised_at_once(
    start: Callable[..., EngineLoop], make_request: Make
) -> None:
    loop = start()
    with pytest.raises(InvalidRequest):
        loop.submit(make_request("a", [999]))
    handle = loop.submit(make_request("b", b"x", max_tokens=2, seed=0, ignore_eos=True))
    assert isinstance(list(handle.events())[-1], Finished)


def test_cancel_ends_the_events_and_frees_the_pages(
    start: Callable[..., EngineLoop], make_request: Make
) -> None:
    loop = start()
    handle = loop.submit(make_request("a", b"x", max_tokens=400, ignore_eos=True))
    events = handle.events()
    next(events)
    handle.cancel()
    rest = list(events)
    assert not any(isinstance(event, Finished) for event in rest)
    deadline = time.monotonic() + 10
    while loop.engine.has_work and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loop.engine.stats().kv_pages_used == 0
    handle.cancel()


def test_the_queue_cap_holds_across_threads(
    start: Callable[..., EngineLoop], make_request: Make
) -> None:
    loop = start(max_num_seqs=1, max_queued=2)
    requests = [make_request(f"r{i}", b"x", max_tokens=300, ignore_eos=True) for i in range(20)]
    with pytest.raises(QueueFull):
        list(map(loop.submit, requests))
    assert loop.is_alive


def test_a_late_cancel_spares_the_next_request_of_the_same_id(
    start: Callable[..., EngineLoop], make_request: Make
) -> None:
    loop = start()
    request = make_request("a", b"x", max_tokens=3, seed=1, ignore_eos=True)
    ended = loop.submit(request)
    assert len(_tokens(ended)) == 3
    again = loop.submit(request)
    ended.cancel()
    assert len(_tokens(again)) == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_loop_names_the_cause_to_all(
    start: Callable[..., EngineLoop], make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start()

    def explode(chunks: Any) -> Any:
        raise MemoryError("no memory for the step")

    monkeypatch.setattr(loop.engine._runner, "run", explode)
    handle = loop.submit(make_request("a", b"x"))
    with pytest.raises(EngineDead, match="MemoryError: no memory for the step"):
        list(handle.events())
    assert not loop.is_alive
    with pytest.raises(EngineDead, match="no memory"):
        loop.submit(make_request("b", b"x"))


def test_a_failing_request_leaves_the_others_alone(
    start: Callable[..., EngineLoop], make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = start()
    run = loop.engine._runner.run

    def broken(chunks: Any) -> Any:
        logits = run(chunks).clone()
        rows = [chunk.seq for chunk in chunks if chunk.is_last]
        for row, seq in enumerate(rows):
            if seq.token_ids[0] == ord("!"):
                logits[row] = float("nan")
        return logits

    monkeypatch.setattr(loop.engine._runner, "run", broken)
    good = loop.submit(make_request("good", b"x", max_tokens=8, seed=2, ignore_eos=True))
    bad = loop.submit(make_request("bad", b"!", max_tokens=8, seed=2))
    with pytest.raises(RequestFailed, match="not finite"):
        list(bad.events())
    assert len(_tokens(good)) == 8
    assert loop.is_alive


def test_stop_ends_open_handles(start: Callable[..., EngineLoop], make_request: Make) -> None:
    loop = start()
    handle = loop.submit(make_request("a", b"x", max_tokens=400, ignore_eos=True))
    loop.stop()
    with pytest.raises(EngineDead, match="it was stopped"):
        list(handle.events())
    with pytest.raises(EngineDead):
        loop.submit(make_request("b", b"x"))


def test_a_loop_not_started_takes_nothing(tiny_engine: Build, make_request: Make) -> None:
    with pytest.raises(EngineDead, match="not been started"):
        EngineLoop(tiny_engine()).submit(make_request("a", b"x"))


def test_two_hundred_callers_lose_no_token(
    start: Callable[..., EngineLoop], make_request: Make
) -> None:
    loop = start(max_num_seqs=16, max_queued=256)
    handles = [
        loop.submit(make_request(f"r{i}", [i, 1, 2, 3], max_tokens=3, seed=i, ignore_eos=True))
        for i in range(200)
    ]
    assert [len(_tokens(handle)) for handle in handles] == [3] * 200
    assert loop.is_alive
