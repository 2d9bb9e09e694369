"""Batch-invariant ranks: a request's logits are the same bits alone and in any company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_engine.weights.resolve import BUNDLED_NAME
from tests.llm_engine.parallel.test_adapter_shares import adapters
from tests.llm_engine.parallel.test_layouts import MODELS

__all__ = ["adapters"]  # a fixture
PROMPT = tuple((17 * i + i // 7) % 240 for i in range(70))
OTHERS = tuple(tuple((11 * i + 5 * j) % 240 for i in range(1 + 7 * j)) for j in range(7))
# Alone; in company, with a prefix that is known; alone again, since the company came.
ROUNDS = ((PROMPT,), (PROMPT, *OTHERS), (PROMPT,))
NUM_TOKENS = 10


def logits_of_all(crew: Any, layout: str, folder: Path, **settings: Any) -> list[dict[int, Any]]:
    """Of the first request in every round, by position, and with chunks of other sizes."""
    found: list[dict[int, Any]] = []
    for chunk_tokens in (96, 9):
        answer = crew.generate(
            layout, folder, ROUNDS, NUM_TOKENS, prefill_chunk_tokens=chunk_tokens, **settings
        )
        found += answer["firsts"]
        is_invariant = settings["batch_invariant"]
        assert ("batch_invariant" in dict(answer["decisions"])) == is_invariant
    return found


def have_same_bits(found: list[dict[int, Any]]) -> bool:
    positions = range(len(PROMPT), len(PROMPT) + NUM_TOKENS)
    assert all(position in one for one in found for position in positions)
    return all(np.array_equal(one[p], found[0][p]) for one in found for p in positions)


def check(crew: Any, layout: str, folder: Path, **settings: Any) -> None:
    assert have_same_bits(logits_of_all(crew, layout, folder, batch_invariant=True, **settings))


CASES = [
    ("tp2", "llama", "float32"),
    ("tp2", "qwen3", "bfloat16"),
    ("tp2", "one_kv", "float32"),
    ("cp2", "odd", "float32"),
    ("cp2,gather", "llama", "float32"),
    ("pp2", "llama", "float32"),
    ("dp2", "bias", "float32"),
    ("tp2,ep2", "moe", "bfloat16"),
    ("dp2,ep2,a2a", "moe", "float32"),
    ("cp2,ep2", "moe", "float32"),
]


@pytest.mark.parametrize(("layout", "model", "dtype"), CASES)
def test_two_ranks(
    layout: str, model: str, dtype: str, pair: Any, model_folder: Callable[..., Path]
) -> None:
    check(pair, layout, model_folder(**MODELS[model]), dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp4", "tp2,pp2", "tp2,cp2", "dp2,cp2"])
def test_four_ranks(layout: str, four: Any, model_folder: Callable[..., Path]) -> None:
    check(four, layout, model_folder(**MODELS["llama"]))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2", "cp2"])
def test_packed_weights(layout: str, pair: Any) -> None:
    """Products of the native kernels have rows of their own; the rest is in tiles."""
    settings = {"dtype": "auto", "page_size": 16, "kv_cache_bytes": 1 << 24, "weights": "packed"}
    check(pair, layout, Path(BUNDLED_NAME), **settings)


def test_the_plain_forms_would_fail_this_test(pair: Any, model_folder: Callable[..., Path]) -> None:
    folder = model_folder(**MODELS["llama"])
    assert not have_same_bits(logits_of_all(pair, "tp2", folder, batch_invariant=False))


@pytest.mark.parametrize("layout", ["tp2", "dp2,ep2,a2a"])
def test_chunks_that_hide_exchanges_keep_the_bits(
    layout: str, pair: Any, model_folder: Callable[..., Path]
) -> None:
    """What overlaps is the same rows in other runs."""
    folder = model_folder(**MODELS["llama" if layout == "tp2" else "moe"])
    overlap = "on" if layout == "tp2" else "auto"
    check(pair, layout, folder, overlap=overlap)


@pytest.mark.parametrize("layout", ["tp2", "cp2,ep2,a2a"])
def test_adapters_keep_rows_apart(
    layout: str,
    pair: Any,
    model_folder: Callable[..., Path],
    adapters: Callable[..., dict[str, str]],
) -> None:
    folder = model_folder(**MODELS["moe" if "ep" in layout else "llama"])
    asked = {"batch_invariant": True, "adapters": adapters(folder)}
    company = [("some", other) if i % 2 else other for i, other in enumerate(OTHERS)]
    rounds = ((("z-all", PROMPT),), (("z-all", PROMPT), *company))
    found = pair.generate(layout, folder, rounds, NUM_TOKENS, **asked)
    assert have_same_bits(found["firsts"])


@pytest.mark.parametrize(
    ("layout", "settings", "reason"),
    [
        ("cp2->tp2", {}, "take one layout for both, as tp2"),
        ("cp2,ring", {}, "ask for heads or gather"),
        ("tp2", {"wire": "int8"}, "ask for exact"),
    ],
)
def test_company_that_would_change_bits_is_refused(
    layout: str,
    settings: dict[str, Any],
    reason: str,
    pair: Any,
    model_folder: Callable[..., Path],
) -> None:
    answers = pair.order(layout, model_folder(), ROUNDS, 2, batch_invariant=True, **settings)
    for answer in answers:
        assert answer["error"].startswith("InvalidConfig")
        assert reason in answer["error"]
