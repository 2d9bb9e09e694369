"""Layers with windows in a running engine: what they hold, and what has no windows says so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.config import EngineConfig
from llm_engine.device import EngineDevice
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidConfig
from llm_engine.layers.weight_form import choose_weights
from llm_engine.loader import LoadedModel, load_model
from llm_engine.parallel.loading import check_layout
from llm_engine.types import Finished

WINDOW, CHUNK, PAGE = 8, 16, 4
NAMES = {"a": 7, "b": 11, "c": 13, "d": 17}
PROMPT = tuple((11 * i) % 251 for i in range(90))


@pytest.fixture(scope="module")
def qwen2(make_tiny: Any, save_byte_tokenizer: Any, tmp_path_factory: Any) -> tuple[Any, Path]:
    """A Qwen2 whose first layer sees everything and whose other two see a window."""
    folder = tmp_path_factory.mktemp("windows")
    oracle = make_tiny("Qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    oracle.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return oracle, folder


@pytest.fixture(scope="module")
def loaded(qwen2: tuple[Any, Path]) -> LoadedModel:
    return load_model(EngineConfig(model=str(qwen2[1]), dtype="float32"))


def engine_of(loaded: LoadedModel, **settings: Any) -> LLMEngine:
    settings = {"page_size": PAGE, "prefill_chunk_tokens": CHUNK, "speculation": "off", **settings}
    return LLMEngine(loaded, EngineConfig(model="tiny", dtype="float32", **settings))


def greedy(oracle: Any, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids = torch.cat((ids, oracle(ids).logits[:, -1:].argmax(-1)), dim=1)
    return ids[0, len(prompt) :].tolist()


def decision_of(engine: LLMEngine, what: str) -> Any:
    (found,) = [decision for decision in engine.ledger if decision.what == what]
    return found


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_window_holds_bounded_pages(
    qwen2: tuple[Any, Path],
    loaded: LoadedModel,
    make_request: Callable[..., Any],
    tokens_of: Callable[..., Any],
    *,
    prefix_cache: bool,
) -> None:
    """Full layers keep every page; the others those of a window, however long the sequence."""
    engine = engine_of(loaded, prefix_cache=prefix_cache)
    full, windowed = engine._cache.parts[0].pools
    layout = engine._cache.layout
    assert (layout.growing_group, layout.window_group) == (0, 1)
    engine.add(make_request("long", PROMPT, max_tokens=60, temperature=0.0, ignore_eos=True))
    events: list[Any] = []
    held: list[tuple[int, int]] = []
    while engine.has_work:
        events += engine.step()
        held.append((full.num_used, windowed.num_used))
    assert tokens_of(events)["long"] == greedy(qwen2[0], PROMPT, 60)
    answering = held[7:-1]
    assert [pages for pages, _ in answering] == sorted(pages for pages, _ in answering)
    assert answering[-1][0] == -(-148 // PAGE)  # before the last token
    assert max(pages for _, pages in held[:-1]) <= layout.most_pages(1, 1000, CHUNK)
    assert {pages for _, pages in answering} <= {2, 3, 4}
    assert max(pages for _, pages in answering) <= layout.most_pages(1, 1000)
    engine.check_integrity()


def test_what_stays_for_reuse_is_checkpoints(
    loaded: LoadedModel, make_request: Callable[..., Any]
) -> None:
    """Of full layers every block stays; of windows those before every 32nd token, and the end."""
    engine = engine_of(loaded)
    engine.generate([make_request("a", PROMPT, max_tokens=2, temperature=0.0, ignore_eos=True)])
    full, windowed = engine._cache.parts[0].pools
    assert (full.num_cached, windowed.num_cached) == (22, 6)
    for name, prompt, num_cached in (
        ("same", PROMPT, 88),
        ("longer", (*PROMPT, 1, 2, 3, 4, 5), 88),
        ("parted", (*PROMPT[:75], 250, 249), 64),
        ("early", (*PROMPT[:40], 250, 249), 32),
        ("short", (*PROMPT[:30], 250, 249), 0),
    ):
        request = make_request(name, prompt, max_tokens=1, temperature=0.0)
        (finished,) = [e for _, e in engine.generate([request]) if isinstance(e, Finished)]
        assert finished.cached_tokens == num_cached, name
    engine.check_integrity()


def test_copies_of_both_groups_come_back(
    qwen2: tuple[Any, Path],
    loaded: LoadedModel,
    make_request: Callable[..., Any],
    tokens_of: Callable[..., Any],
) -> None:
    """Sequences give up their pages for copies in the host tier and go on from them."""
    config = loaded.model.config
    token_bytes = 2 * 3 * config.num_kv_heads * config.head_dim * 4
    engine = engine_of(
        loaded,
        max_model_len=128,
        kv_cache_bytes=token_bytes * 80,
        preemption="copy",
        host_cache_bytes=1 << 20,
    )
    prompts = {name: tuple((step * i) % 251 for i in range(40)) for name, step in NAMES.items()}
    requests = [
        make_request(name, prompt, max_tokens=40, temperature=0.0, ignore_eos=True)
        for name, prompt in prompts.items()
    ]
    answers = tokens_of(engine.generate(requests))
    assert engine.stats().copied_preemptions_total > 0
    for name, prompt in prompts.items():
        assert answers[name] == greedy(qwen2[0], prompt, 40), name
    engine.check_integrity()


def test_the_cache_takes_what_the_layers_need(loaded: LoadedModel) -> None:
    """All sequences at full length, in less than full attention takes in two layers."""
    config = loaded.model.config
    layer_bytes = 2 * config.num_kv_heads * config.head_dim * 4
    num_tokens, num_seqs = 400, 4
    engine = engine_of(
        loaded,
        max_model_len=num_tokens,
        max_num_seqs=num_seqs,
        prefix_cache=False,
        kv_cache_bytes=2 * layer_bytes * num_seqs * num_tokens,
    )
    full, windowed = engine._cache.parts[0].pools
    assert full.num_pages == num_seqs * num_tokens // PAGE
    reserved = sum(len(r.tensor) for r in engine._runner.cache.reservations) * PAGE * layer_bytes
    assert reserved == (full.num_pages + 2 * windowed.num_pages) * PAGE * layer_bytes
    assert reserved < 2 * layer_bytes * num_seqs * num_tokens
    assert decision_of(engine, "windows").chosen == "pages of their own"
    assert "holds at most 4" in str(decision_of(engine, "KV capacity").reasons)


def test_a_warm_up_measures_a_step(loaded: LoadedModel) -> None:
    engine = engine_of(loaded, prefill_chunk_tokens=64)
    engine.warm_up()
    engine.check_integrity()


def test_a_context_within_the_window_needs_no_windows(loaded: LoadedModel) -> None:
    engine = engine_of(loaded, max_model_len=WINDOW)
    assert len(engine._cache.layout.groups) == 1
    decision = decision_of(engine, "windows")
    assert decision.chosen == "full attention, up to 8 tokens"
    assert "max_model_len, 8" in decision.reasons[0]
    assert engine._runner._ops.single_decode is not None


def test_rows_that_depend_on_nothing_end_with_the_window(loaded: LoadedModel) -> None:
    engine = engine_of(loaded, batch_invariant=True)
    assert engine.card.max_model_len == WINDOW
    assert "batch_invariant has no windows" in decision_of(engine, "windows").reasons[0]
    with pytest.raises(InvalidConfig, match="max_model_len is 9, but batch_invariant has no"):
        engine_of(loaded, batch_invariant=True, max_model_len=9)


def test_layouts_that_exchange_keys_end_with_the_window(qwen2: tuple[Any, Path]) -> None:
    config = EngineConfig(model=str(qwen2[1]), layout="cp2", max_model_len=WINDOW)
    assert check_layout(config).num_ranks == 2
    assert check_layout(replace(config, layout="tp2", max_model_len=64)).num_ranks == 2
    with pytest.raises(InvalidConfig, match="alone: ask for no more, or take a layout of tp, pp"):
        check_layout(replace(config, max_model_len=64))


def test_packed_weights_are_refused_beyond_the_window(loaded: LoadedModel) -> None:
    """The native kernels' attention sees everything: within the window that is the same."""
    model = replace(loaded.model.config, hidden_size=64, head_dim=32, intermediate_size=64)
    config = EngineConfig(model="tiny", weights="packed", max_model_len=9)
    with pytest.raises(InvalidConfig, match="native attention has no windows, and max_model_len"):
        choose_weights(config, model, EngineDevice.of("cpu"), is_quantised=True)
