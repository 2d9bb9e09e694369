"""Engines whose keys are dealt out by position: answers of one rank, cache of several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from tests.llm_engine.parallel.test_layouts import MODELS, ROUNDS

LONG = tuple([(17 * i + i // 7) % 240 for i in range(150)])
MANY = tuple(tuple((13 * i + 29 * j) % 240 for i in range(30)) for j in range(6))


def check(crew: Any, alone: Callable[..., Any], folder: Path, layout: str, **settings: Any) -> Any:
    found = crew.generate(layout, folder, ROUNDS, **settings)
    for (tokens, logits), got, rows in zip(
        alone(folder, ROUNDS, **settings), found["tokens"], found["logits"], strict=True
    ):
        assert got == tokens
        for ours, theirs in zip(rows, logits, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-4, rtol=1e-5)
    return found


MASKED = ("gpt_oss", "windows")  # their windows and sinks take a layout of tp, pp, dp and ep


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        *(("cp2,ring", model) for model in MODELS if model not in MASKED),
        ("cp2,ep2,ring", "moe"),
        ("cp2,ep2,ring,a2a", "moe"),
    ],
)
def test_two_ranks(
    layout: str,
    model: str,
    pair: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
) -> None:
    found = check(pair, alone, model_folder(**MODELS[model]), layout)
    decisions = dict(found["decisions"])
    assert decisions["attention of split rows"].endswith("in a ring")
    assert decisions["layout"] == layout


@pytest.mark.parametrize("model", ["llama", "one_kv"])
def test_three_ranks(
    model: str, trio: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    check(trio, alone, model_folder(**MODELS[model]), "cp3,ring", page_size=6)


@pytest.mark.parametrize("layout", ["cp3", "cp3,ring"])
def test_more_ranks_than_heads(
    layout: str, trio: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    folder = model_folder(num_attention_heads=2, num_key_value_heads=2)
    check(trio, alone, folder, layout, page_size=6)


def test_drafts_are_accepted(
    pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    folder, rounds = model_folder(), ((tuple([5, 6, 7, 8, 9, 10] * 8),),)
    found = pair.generate("cp2,ring", folder, rounds, 40, speculation="ngram")
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, rounds, 40)]
    stats = found["stats"]
    assert stats.accepted_drafts_total + stats.rejected_drafts_total > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("cp4,ring", "odd"),
        ("tp2,cp2,ring", "odd"),
        ("tp2,cp2,ring", "qwen3"),
        ("cp2,pp2,ring", "moe"),
        ("cp2,ep4,ring", "moe"),
    ],
)
def test_four_ranks(
    layout: str,
    model: str,
    four: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
) -> None:
    check(four, alone, model_folder(**MODELS[model]), layout)


@pytest.mark.parametrize("model", [{}, {"num_key_value_heads": 1}])
def test_a_past_that_was_cached_is_found_on_the_ranks_that_have_it(
    model: dict[str, Any], pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    """Prefixes that end within a page, a page that is given up for a copy, and drafts."""
    folder = model_folder(**model)
    rounds = ((LONG,), (LONG[:101] + LONG[:9],), MANY)
    found = pair.generate("cp2,ring", folder, rounds)
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, rounds)]
    assert found["stats"].prefix_hit_tokens_total >= 96


def test_pages_come_back_from_host_memory(
    pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    folder = model_folder()
    page_bytes = 2 * 3 * 2 * 2 * 16 * 4  # two of the four tokens of a page
    asked = {"kv_cache_bytes": 25 * page_bytes, "max_model_len": 48, "preemption": "copy"}
    found = pair.generate("cp2,ring", folder, (MANY, MANY), host_cache_bytes=1 << 20, **asked)
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, (MANY, MANY))]
    assert found["stats"].copied_preemptions_total > 0


def test_each_rank_caches_its_own_positions(pair: Any, model_folder: Callable[..., Path]) -> None:
    """The same bytes hold twice the tokens, though there is one key/value head for two ranks."""
    asked: dict[str, Any] = {
        "kv_cache_bytes": 1 << 16,
        "max_model_len": 64,
        "max_num_seqs": 32,
        "page_size": 4,
    }
    folder = model_folder(num_key_value_heads=1)
    one = LLMEngine.load(EngineConfig(model=str(folder), dtype="float32", **asked)).card.kv_tokens
    held = {
        exchange: pair.generate(f"cp2,{exchange}", folder, ((LONG[:9],),), 2, **asked)[
            "card"
        ].kv_tokens
        for exchange in ("heads", "gather", "ring")
    }
    assert held["heads"] == held["gather"] == one
    assert held["ring"] in (2 * one, 2 * one + 4)  # whole pages


def test_bfloat16(pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]) -> None:
    folder = model_folder("Qwen3", tie_word_embeddings=True)
    ((_, logits),) = alone(folder, ((LONG[:20],),), 2, dtype="bfloat16")
    found = pair.generate("cp2,ring", folder, ((LONG[:20],),), 2, dtype="bfloat16")
    ours, theirs = found["logits"][0][0], logits[0].numpy()
    assert np.abs(ours - theirs).max() < 8 * 2**-8 * np.abs(theirs).max()
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.999


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"page_size": 5}, "take a multiple of 2, as 6"),
        ({"weights": "packed"}, "lie in torch's layout"),
    ],
)
def test_refused_before_loading(
    settings: dict[str, Any], reason: str, pair: Any, model_folder: Callable[..., Path]
) -> None:
    for answer in pair.order("cp2,ring", model_folder(), ((LONG,),), 2, **settings):
        assert answer["error"].startswith("InvalidConfig")
        assert reason in answer["error"]
