"""What is above the runner works unchanged over ranks, and what cannot work is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidConfig
from tests.llm_engine.parallel.test_layouts import MODELS

LONG = tuple([(17 * i + i // 7) % 240 for i in range(150)])
MANY = tuple(tuple((13 * i + 29 * j) % 240 for i in range(30)) for j in range(6))


@pytest.mark.parametrize("layout", ["pp2", "cp2->tp2", "pp2->tp2", "dp2"])
def test_a_long_prompt_in_one_chunk(
    layout: str, pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    """With pp, the step is cut into chunks that the stages work on at the same time."""
    folder = model_folder()
    ((tokens, logits),) = alone(folder, ((LONG,),), prefill_chunk_tokens=160)
    found = pair.generate(layout, folder, ((LONG,),), prefill_chunk_tokens=160)
    assert found["tokens"] == [tokens]
    for ours, theirs in zip(found["logits"][0], logits, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-4, rtol=1e-5)
    assert found["phases"] == ["prefill"] + ["decode"] * 11


@pytest.mark.slow
def test_rows_of_several_chunks_and_ranks_come_back_in_order(
    four: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    """Prompts end in every chunk of a pipeline, on either rank that shares its rows."""
    folder, asked = model_folder(), {"prefill_chunk_tokens": 200}
    ((tokens, logits),) = alone(folder, (MANY,), 3, **asked)
    found = four.generate("cp2,pp2", folder, (MANY,), 3, **asked)
    assert found["tokens"] == [tokens]
    for ours, theirs in zip(found["logits"][0], logits, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("layout", ["tp2", "cp2", "cp2->tp2", "pp2", "pp2->tp2", "dp2"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_bfloat16(
    layout: str,
    is_tied: bool,
    pair: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
) -> None:
    """Row-major or in a vendor's blocks: the logits of the first step are those of one rank."""
    folder = model_folder("Qwen3", tie_word_embeddings=is_tied)
    ((_, logits),) = alone(folder, ((LONG[:20],),), 2, dtype="bfloat16")
    found = pair.generate(layout, folder, ((LONG[:20],),), 2, dtype="bfloat16")
    ours, theirs = found["logits"][0][0], logits[0].numpy()
    # Each of the layers rounds its sums at other places: a few units of bfloat16's last place.
    assert np.abs(ours - theirs).max() < 8 * 2**-8 * np.abs(theirs).max()
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["dp2,cp2", "dp2,cp2->dp2,tp2", "ep2,pp2->tp4,ep4"])
def test_prefixes_and_drafts_on_four_ranks(
    layout: str, four: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    """Reused prefixes, chunks beside answers, drafts, and too few pages for all."""
    folder = model_folder(**MODELS["moe" if "ep" in layout else "llama"])
    rounds = ((LONG,), (LONG[:100] + LONG[:9], *MANY), (LONG[:60], *MANY))
    asked = {"speculation": "ngram", "prefill_chunk_tokens": 50}
    found = four.generate(layout, folder, rounds, **asked)
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, rounds, **asked)]
    assert found["stats"].prefix_hit_tokens_total >= 96


@pytest.mark.parametrize("layout", ["tp2", "cp2->tp2", "pp2", "pp2->tp2", "dp2"])
def test_prefixes_are_reused(
    layout: str, pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    folder = model_folder()
    rounds = ((LONG,), (LONG[:100] + LONG[:9],))
    found = pair.generate(layout, folder, rounds)
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, rounds)]
    # Whole blocks, and the four tokens that another block begins with.
    assert found["stats"].prefix_hit_tokens_total >= 100


@pytest.mark.parametrize(
    ("layout", "preemption"),
    [
        *((layout, "copy") for layout in ("tp2", "cp2", "pp2->tp2", "dp2")),
        *((layout, "recompute") for layout in ("pp2->tp2", "dp2")),
    ],
)
def test_sequences_give_up_their_pages(
    layout: str,
    preemption: str,
    pair: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
) -> None:
    """Fewer pages than six sequences of 42 tokens need.

    25 for all; with stages 12 pages of their own beside those, each a third larger, since a stage
    has two of three layers and both heads; with dp 20 of both heads for the three of each rank.
    """
    folder = model_folder()
    page_bytes = 4 * 3 * 2 * 16 * 4  # of one of two key/value heads
    num_pages = {"pp2->tp2": 25 + 12 + 4, "dp2": 20 * 2}.get(layout, 25)
    asked = {"kv_cache_bytes": num_pages * page_bytes, "max_model_len": 48}
    asked |= {"preemption": preemption}
    found = pair.generate(layout, folder, (MANY, MANY), host_cache_bytes=1 << 20, **asked)
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, (MANY, MANY))]
    stats = found["stats"]
    assert stats.preemptions_total > 0
    assert (stats.copied_preemptions_total > 0) == (preemption == "copy")


@pytest.mark.parametrize("layout", ["cp2->tp2", "pp2->tp2", "dp2"])
def test_drafts_are_accepted_over_ranks(
    layout: str, pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    folder = model_folder()
    prompt = tuple([5, 6, 7, 8, 9, 10] * 8)
    rounds = ((prompt,), (prompt, LONG[:40], prompt[1:]))
    found = pair.generate(layout, folder, rounds, 40, speculation="ngram")
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, rounds, 40)]
    stats = found["stats"]
    assert stats.accepted_drafts_total + stats.rejected_drafts_total > 0


def test_the_ledger_says_how_the_model_lies(pair: Any, model_folder: Callable[..., Path]) -> None:
    found = pair.generate("cp2->tp2", model_folder(), ((LONG,),), 2)
    decisions = dict(found["decisions"])
    assert decisions["layout"] == "cp2,heads->tp2"
    assert decisions["attention of split rows"] == "all-to-all by heads"
    found = pair.generate("tp2", model_folder(), ((LONG,),), 2)
    assert dict(found["decisions"])["embedding and head"] == "vocabulary in 2 parts"
    found = pair.generate("pp2->tp2", model_folder(), ((LONG,),), 2)
    assert dict(found["decisions"])["pages of prompts"] == "64 pages"
    assert found["phases"].count("prefill") == 7
    found = pair.generate("dp2", model_folder(), (MANY,), 2)
    assert dict(found["decisions"])["sequences"] == "in 2 parts, each with a cache of its own"
    whole = LLMEngine.load(EngineConfig(model=str(model_folder()), dtype="float32"))
    assert found["card"].num_parameters == whole.card.num_parameters
    assert found["card"].vocab_size == whole.card.vocab_size


def test_a_rank_caches_its_own_heads(pair: Any, model_folder: Callable[..., Path]) -> None:
    """Or, with dp, those of its own sequences. The same bytes hold twice the tokens."""
    asked: dict[str, Any] = {
        "kv_cache_bytes": 1 << 18,
        "max_model_len": 64,
        "max_num_seqs": 32,
        "page_size": 4,
    }
    config = EngineConfig(model=str(model_folder()), dtype="float32", **asked)
    one = LLMEngine.load(config).card.kv_tokens
    for layout in ("tp2", "cp2", "dp2"):
        card = pair.generate(layout, model_folder(), ((LONG[:9],),), 2, **asked)["card"]
        assert card.kv_tokens in (2 * one, 2 * one + 4)  # whole pages


@pytest.mark.parametrize(
    ("layout", "settings", "reason"),
    [
        ("tp4", {}, "is for 4 ranks, the group has 2"),
        ("tp2,ep2", {}, "the model has no experts"),
        ("tp2", {"weights": "packed"}, "begin within a group of columns"),
        ("cp2->tp2", {"weights": "packed"}, "would begin within a panel"),
        ("tp2", {"kernels": {"mlp_block": "native"}}, "exchanged before it is added"),
        ("tp2x", {}, "'tp2x' is no axis"),
    ],
)
def test_refused_on_every_rank_before_loading(
    layout: str,
    settings: dict[str, Any],
    reason: str,
    pair: Any,
    model_folder: Callable[..., Path],
) -> None:
    answers = pair.order(layout, model_folder(), ((LONG,),), 2, **settings)
    for answer in answers:
        assert answer["error"].partition(":")[0] in ("InvalidConfig", "MalformedLayout")
        assert reason in answer["error"]


def test_a_layout_needs_ranks(model_folder: Callable[..., Path]) -> None:
    with pytest.raises(InvalidConfig, match="no other ranks"):
        LLMEngine.load(EngineConfig(model=str(model_folder()), layout="tp2"))
