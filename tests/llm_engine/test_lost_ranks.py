"""Ranks that are lost under an engine: what ran goes on with the same tokens, or ends clearly."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from kernels.collectives.errors import RankLost
from llm_engine.engine import LLMEngine
from llm_engine.errors import EngineDead
from llm_engine.loop import EngineLoop, RequestHandle
from llm_engine.types import Finished, GenerationRequest, TextDelta

Build = Callable[..., LLMEngine]
Make = Callable[..., GenerationRequest]


class Losses:
    """A runner that loses its ranks, and the ranks that come back; the cache does not survive."""

    def __init__(self, engine: LLMEngine, at_steps: set[int], limit: int = 99) -> None:
        self.is_broken = False
        self.renewals: list[BaseException | None] = []
        self._engine, self._run = engine, engine._runner.run
        self._at, self._limit, self._step = at_steps, limit, 0
        engine._runner.run = self.run  # type: ignore[method-assign]

    def run(self, chunks: Any) -> Any:
        self._step += 1
        if self.is_broken or self._step in self._at:
            self.is_broken = True
            raise RankLost("rank 1 is gone", (1,))
        return self._run(chunks)

    def renew(self, rejoin: Callable[[], None], error: BaseException | None = None) -> None:
        rejoin()
        self.renewals.append(error)
        if len(self.renewals) > self._limit:
            raise RuntimeError("the ranks were lost too often")
        for layer in self._engine._runner.cache.layers:
            layer.fill_(7.0)  # finite, as masked positions must be
        self.is_broken = False


def _requests(make_request: Make) -> list[GenerationRequest]:
    common = bytes(range(40))
    return [
        make_request("greedy", common + b"a", temperature=0.0, max_tokens=24, ignore_eos=True),
        make_request(
            "seeded", common + b"b", temperature=1.0, seed=7, max_tokens=24, ignore_eos=True
        ),
        make_request(
            "scored",
            common + b"c",
            temperature=0.0,
            max_tokens=8,
            ignore_eos=True,
            prompt_logprobs=1,
        ),
        make_request("late", common, temperature=0.0, max_tokens=12, ignore_eos=True),
    ]


def _tokens(handle: RequestHandle) -> list[int]:
    return [t for event in handle.events() if isinstance(event, TextDelta) for t in event.token_ids]


@pytest.mark.parametrize("at_steps", [{1}, {2, 3, 4}, {9}, {5, 17, 18}])
@pytest.mark.parametrize("settings", [{}, {"max_num_seqs": 2, "prefill_chunk_tokens": 16}])
def test_answers_go_on_with_the_same_tokens(
    tiny_engine: Build, make_request: Make, at_steps: set[int], settings: dict[str, Any]
) -> None:
    whole = tiny_engine(**settings)
    expected = {r.request_id: _alone(whole, r) for r in _requests(make_request)}
    engine = tiny_engine(**settings)
    losses = Losses(engine, at_steps)
    loop = EngineLoop(engine, losses)
    answers = {h.request_id: _tokens(h) for h in _submitted(loop, _requests(make_request))}
    loop.stop()
    assert answers == expected
    assert len(losses.renewals) == len(at_steps)
    engine.check_integrity()


def _submitted(loop: EngineLoop, requests: list[GenerationRequest]) -> list[RequestHandle]:
    loop.start()
    return [loop.submit(request) for request in requests]


def test_sequences_that_were_copied_to_the_host_are_computed_again(
    tiny_engine: Build, make_request: Make
) -> None:
    settings = {
        "max_model_len": 96, "kv_cache_bytes": 9 * 16 * 1024, "host_cache_bytes": 1 << 22,
        "preemption": "copy", "prefix_cache": False,
    }  # fmt: skip
    requests = [
        make_request(f"r{i}", bytes([i]) * 30, temperature=0.0, max_tokens=60, ignore_eos=True)
        for i in range(4)
    ]
    whole = tiny_engine(**settings)
    expected = {r.request_id: _alone(whole, r) for r in requests}
    engine = tiny_engine(**settings)
    loop = EngineLoop(engine, Losses(engine, {70}))
    answers = {h.request_id: _tokens(h) for h in _submitted(loop, requests)}
    loop.stop()
    assert answers == expected
    assert engine.stats().copied_preemptions_total > 0


def _alone(engine: LLMEngine, request: GenerationRequest) -> list[int]:
    events = engine.generate([request])
    return [t for _, e in events if isinstance(e, TextDelta) for t in e.token_ids]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_ranks_that_may_not_come_back_end_every_request_with_the_reason(
    tiny_engine: Build, make_request: Make
) -> None:
    engine = tiny_engine()
    loop = EngineLoop(engine, Losses(engine, {3, 6}, limit=1))
    handles = _submitted(loop, _requests(make_request))
    for handle in handles:
        with pytest.raises(EngineDead, match="the ranks were lost too often"):
            list(handle.events())


def test_a_loss_while_idle_is_mended_without_a_request(
    tiny_engine: Build, make_request: Make
) -> None:
    engine = tiny_engine()
    losses = Losses(engine, set())
    loop = EngineLoop(engine, losses)
    (first,) = _submitted(loop, [make_request("a", b"xy", max_tokens=4, ignore_eos=True)])
    assert isinstance(list(first.events())[-1], Finished)
    losses.is_broken = True
    deadline_s = time.monotonic() + 10
    while not losses.renewals and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert losses.renewals == [None]
    again = loop.submit(make_request("a", b"xy", max_tokens=4, ignore_eos=True))
    assert isinstance(list(again.events())[-1], Finished)
    loop.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_ranks_a_loss_ends_the_engine(tiny_engine: Build, make_request: Make) -> None:
    engine = tiny_engine()
    Losses(engine, {2})
    loop = EngineLoop(engine)
    (handle,) = _submitted(loop, [make_request("a", b"xy", max_tokens=9, ignore_eos=True)])
    with pytest.raises(EngineDead, match="RankLost: rank 1 is gone"):
        list(handle.events())
