"""Reuse, preemption and memory of the whole engine: answers never depend on any of them."""

import gc
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kernels.hardware.host_memory import MachineMemory
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import DeadlineExceeded, InvalidConfig
from llm_engine.loader import LoadedModel
from llm_engine.types import Finished, GenerationRequest, SamplingParams

PAGE_BYTES = 768 * 4  # 3 layers, keys and values, 2 heads of 16, float32, 4 tokens
Build = Callable[..., LLMEngine]
SHARED = [(7 * i) % 256 for i in range(60)]
PROMPTS = {
    "a": [*SHARED, 1, 2, 3],
    "b": [*SHARED[:50], 9, 8],
    "c": [*SHARED, 1, 2, 3],
    "d": list(range(100)),
    "e": [5],
}


def requests(suffix: str = "", **fields: Any) -> list[GenerationRequest]:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    return [
        GenerationRequest(name + suffix, None, tuple(ids), params, **fields)
        for name, ids in PROMPTS.items()
    ]


@pytest.fixture(scope="module")
def expected(tiny_loaded: LoadedModel, tokens_of: Any) -> dict[str, list[int]]:
    """Each request alone, in one chunk, with nothing reused."""
    answers: dict[str, list[int]] = {}
    for request in requests():
        config = EngineConfig(
            model="tiny",
            dtype="float32",
            prefix_cache=False,
            speculation="off",
            prefill_chunk_tokens=512,
        )
        answers |= tokens_of(LLMEngine(tiny_loaded, config).generate([request]))
    return answers


@pytest.mark.parametrize(
    ("chunk", "prefix_cache", "speculation"),
    list(itertools.product([16, 128, 512], [False, True], ["off", "ngram"])),
)
def test_answers_do_not_depend_on_reuse_chunks_or_drafts(
    tiny_engine: Build,
    tokens_of: Any,
    expected: dict[str, list[int]],
    chunk: int,
    prefix_cache: bool,
    speculation: str,
) -> None:
    engine = tiny_engine(
        prefill_chunk_tokens=chunk, prefix_cache=prefix_cache, speculation=speculation
    )
    for turn in range(2):
        assert tokens_of(engine.generate(requests())) == expected, f"turn {turn}"
    assert (engine.stats().prefix_hits_total > 0) is prefix_cache
    engine.check_integrity()


@pytest.mark.parametrize("preemption", ["recompute", "copy", "auto"])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_answers_survive_preemption(
    tiny_engine: Build,
    tokens_of: Any,
    expected: dict[str, list[int]],
    preemption: str,
    prefix_cache: bool,
) -> None:
    engine = tiny_engine(
        kv_cache_bytes=PAGE_BYTES * 34,
        max_model_len=128,
        preemption=preemption,
        prefix_cache=prefix_cache,
        host_cache_bytes=0 if preemption == "recompute" else PAGE_BYTES * 100,
    )
    assert tokens_of(engine.generate(requests())) == expected
    stats = engine.stats()
    assert stats.preemptions_total > 0
    if preemption == "copy":
        assert stats.copied_preemptions_total > 0
        assert stats.host_cache_in_bytes_total > 0
    if preemption == "recompute":
        assert stats.copied_preemptions_total == 0
    assert any(d.what == "preemption" for d in engine.ledger)
    engine.check_integrity()


def test_evicted_prompts_come_back_from_host_memory(
    tiny_engine: Build, tokens_of: Any, expected: dict[str, list[int]]
) -> None:
    engine = tiny_engine(
        kv_cache_bytes=PAGE_BYTES * 34, max_model_len=128, host_cache_bytes=PAGE_BYTES * 200
    )
    for _ in range(3):
        for request in requests():
            answer = tokens_of(engine.generate([request]))
            assert answer[request.request_id] == expected[request.request_id]
    stats = engine.stats()
    assert stats.prefix_evicted_blocks_total > 0
    assert stats.host_cache_in_bytes_total > 0
    assert stats.host_cache_bytes <= stats.host_cache_capacity_bytes
    engine.check_integrity()


def test_cached_tokens_are_in_the_usage(tiny_engine: Build) -> None:
    engine = tiny_engine()
    first, second = (
        next(e for _, e in engine.generate([requests()[0]]) if isinstance(e, Finished))
        for _ in range(2)
    )
    assert (first.cached_tokens, second.cached_tokens) == (0, 62)
    assert engine.describe_cache()["min_reusable_prefix"] == 4
    engine.clear_cache()
    assert engine.stats().kv_pages_cached == 0


def test_choices_compute_their_prompt_once(tiny_engine: Build) -> None:
    engine = tiny_engine(prefill_chunk_tokens=512)
    params = SamplingParams(seed=1, n=4, max_tokens=2, ignore_eos=True)
    engine.add(GenerationRequest("n", None, tuple(range(101)), params))
    computed = 0
    run = engine._runner.run

    def counted(chunks: Any) -> Any:
        nonlocal computed
        computed += sum(chunk.num_tokens for chunk in chunks)
        return run(chunks)

    engine._runner.run = counted  # type: ignore[method-assign]
    while engine.has_work:
        engine.step()
    assert computed <= 101 + 3 + 4


def test_tenants_can_be_kept_apart(tiny_engine: Build) -> None:
    engine = tiny_engine(isolate_tenants=True)
    for tenant, expected_hit in (("x", 0), ("y", 0), ("x", 62)):
        events = engine.generate([requests(tenant=tenant)[0]])
        assert [e.cached_tokens for _, e in events if isinstance(e, Finished)] == [expected_hit]


def test_a_deadline_ends_waiting_and_running_requests(tiny_loaded: LoadedModel) -> None:
    now_s = 0.0
    config = EngineConfig(model="tiny", dtype="float32", max_num_seqs=1, speculation="off")
    engine = LLMEngine(tiny_loaded, config, clock=lambda: now_s)
    for request in requests(deadline_s=5.0)[:2]:
        engine.add(request)
    engine.add(requests("late", deadline_s=50.0)[2])
    engine.step()
    assert engine.take_failures() == []
    now_s = 5.0
    engine.step()
    failures = engine.take_failures()
    assert sorted(name for name, _ in failures) == ["a", "b"]
    assert all(isinstance(error, DeadlineExceeded) for _, error in failures)
    while engine.has_work:
        engine.step()
    engine.check_integrity()


def test_copying_needs_room_and_says_how_much(tiny_engine: Build) -> None:
    with pytest.raises(InvalidConfig, match=f"takes {PAGE_BYTES * 8} bytes"):
        tiny_engine(preemption="copy", max_model_len=32)


def test_too_long_a_context_names_the_longest_that_fits(tiny_loaded: LoadedModel) -> None:
    config = EngineConfig(model="tiny", dtype="float32", max_model_len=512, prefill_chunk_tokens=16)

    def build(available_bytes: int) -> LLMEngine:
        memory = MachineMemory(1 << 30, available_bytes, "the test")
        return LLMEngine(tiny_loaded, config, read_memory=lambda: memory)

    fixed = build(1 << 29).memory.total_bytes
    with pytest.raises(InvalidConfig, match="largest max_model_len that fits is 112"):
        build(fixed + 768 * 130)
    assert build(fixed + 768 * 600).card.max_model_len == 512


def test_the_plan_has_a_stable_name(tiny_engine: Build) -> None:
    assert tiny_engine().card.plan_hash == tiny_engine().card.plan_hash != ""
    assert tiny_engine().card.plan_hash != tiny_engine(prefix_cache=False).card.plan_hash


def test_a_warm_up_measures_the_workspace(tiny_engine: Build) -> None:
    engine = tiny_engine(prefill_chunk_tokens=256)
    (entry,) = [e for e in engine.warm_up().entries if e.name == "step workspace"]
    assert entry.source == "measured"
    assert entry.size_bytes < 64 << 20
    engine.check_integrity()
    assert engine.stats().kv_pages_cached == 0


def _serve_many(engine: LLMEngine, count: int, first: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    for start in range(first, first + count, 20):
        batch = [
            GenerationRequest(f"r{i}", None, (i % 256, i // 256 % 256, 3, 4, 5, 6), params)
            for i in range(start, start + 20)
        ]
        engine.generate(batch)


def _grown_blocks(engine: LLMEngine, count: int) -> int:
    """Blocks of Python's allocator that are held after `count` requests more than before."""
    _serve_many(engine, 800, 0)
    gc.collect()
    before = sys.getallocatedblocks()
    _serve_many(engine, count, 800)
    gc.collect()
    return sys.getallocatedblocks() - before


def test_memory_stays_flat(tiny_engine: Build) -> None:
    engine = tiny_engine(kv_cache_bytes=PAGE_BYTES * 100, speculation="off")
    assert _grown_blocks(engine, 1200) < 400
    engine.check_integrity()


@pytest.mark.slow
def test_memory_stays_flat_for_long(tiny_engine: Build) -> None:
    engine = tiny_engine(kv_cache_bytes=PAGE_BYTES * 100)
    assert _grown_blocks(engine, 9200) < 800
    engine.check_integrity()
