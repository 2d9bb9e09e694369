"""The settings `overlap` and `wire` in whole engines over two ranks that are processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_engine.weights.resolve import BUNDLED_NAME

PROMPTS = (tuple((11 * i + i * i) % 240 for i in range(101)), tuple(range(5, 76)))
ASKED = {"prefill_chunk_tokens": 128}


@pytest.mark.parametrize("layout", ["tp2", "cp2", "cp2,gather", "cp2->tp2", "dp2"])
def test_greedy_tokens_are_those_of_one_rank(
    layout: str, pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    folder = model_folder()
    ((expected, _),) = alone(folder, (PROMPTS,), 6, **ASKED)
    found = pair.generate(layout, folder, (PROMPTS,), 6, **ASKED, overlap="on")
    assert found["tokens"] == [expected]
    chosen = [what for name, what in found["decisions"] if name == "overlap"]
    assert chosen
    assert all(what.startswith("on, ") for what in chosen)


@pytest.mark.parametrize("layout", ["tp2", "cp2,gather", "cp2->tp2", "dp2"])
def test_answers_in_micro_batches_are_those_of_one_rank(
    layout: str, pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    """Twenty answers at once; steps of fewer rows than the least are left whole."""
    folder = model_folder()
    prompts = tuple(tuple((7 * i + j) % 240 for j in range(3 + i % 4)) for i in range(20))
    asked = {**ASKED, "max_num_seqs": 32}
    ((expected, _),) = alone(folder, (prompts,), 6, **asked)
    found = pair.generate(layout, folder, (prompts,), 6, **asked, overlap="on")
    assert found["tokens"] == [expected]
    chosen = [what for name, what in found["decisions"] if name == "overlap"]
    assert any(what.startswith("on, ") for what in chosen)


def test_an_int8_wire_is_told(pair: Any, model_folder: Callable[..., Path]) -> None:
    found = pair.generate("tp2", model_folder(), (PROMPTS,), 2, **ASKED, wire="int8")
    assert ("wire", "int8") in found["decisions"]
    exact = pair.generate("tp2", model_folder(), (PROMPTS,), 2, **ASKED)
    assert ("wire", "exact") in exact["decisions"]
    assert not np.array_equal(found["logits"][0][0], exact["logits"][0][0])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp2", "cp2"])
def test_packed_weights_overlap_with_the_bits_of_whole_steps(layout: str, pair: Any) -> None:
    """A row of a packed product depends on no other row, nor does native attention."""
    asked = {"dtype": "auto", "page_size": 16, "kv_cache_bytes": 1 << 24, **ASKED}
    logits = {}
    for overlap in ("on", "off"):
        found = pair.generate(layout, BUNDLED_NAME, (PROMPTS,), 1, **asked, overlap=overlap)
        assert ("weights", "packed") in found["decisions"]
        logits[overlap] = np.concatenate(found["logits"][0])
    np.testing.assert_array_equal(logits["on"], logits["off"])
