"""Which way ranks exchange keys, what the ledger says of it, and what each way costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_engine.errors import InvalidConfig
from llm_engine.model_config import ModelConfig, RopeConfig
from llm_engine.parallel.exchange_choice import (
    CacheNeeds,
    check_page,
    exchange_decision,
    forms,
    settled,
)
from llm_engine.parallel.layout import Layout, PhaseLayouts
from llm_engine.parallel.shares import check_fit

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    num_layers=3,
    num_heads=8,
    num_kv_heads=1,
    head_dim=16,
    rms_eps=1e-6,
    max_position=512,
    is_tied=False,
    rope=RopeConfig(theta=1e4),
)
# A gathered token takes 3 layers x 2 x 1 head x 16 x 4 bytes.
NEEDS = CacheNeeds(page_size=16, item_bytes=4, context=100, cache_bytes=100 * 384)


def chosen(layouts: str, needs: CacheNeeds | None = NEEDS, **sizes: Any) -> str:
    config = dataclasses.replace(MODEL, **sizes)
    return settled(config, PhaseLayouts.parse(layouts), needs).prefill.exchange


def test_keys_are_dealt_out_where_the_longest_sequence_would_not_fit_on_every_rank() -> None:
    less = dataclasses.replace(NEEDS, cache_bytes=100 * 384 - 1)
    assert chosen("cp2") == "gather"
    assert chosen("cp2", less) == "ring"
    assert chosen("cp2", dataclasses.replace(less, cache_bytes=None)) == "gather"
    assert chosen("cp2", less, num_kv_heads=2) == "heads"
    assert chosen("cp2->tp2", less) == "heads"
    assert chosen("cp3", less) == "gather"  # whose pages have no equal parts
    assert chosen("cp2,gather", less) == "gather"


def test_heads_that_do_not_divide_are_left_whole() -> None:
    """More ranks than query heads, or shares of them that leave a rank with an uneven one."""
    assert chosen("cp4", None, num_heads=2, num_kv_heads=2) == "gather"
    assert chosen("tp2,cp3", None, num_heads=12, num_kv_heads=4) == "gather"
    for text in ("cp4", "cp4,ring"):
        few = dataclasses.replace(MODEL, num_heads=2)
        check_fit(few, settled(few, PhaseLayouts.parse(text)), 4)
    with pytest.raises(InvalidConfig, match="tp x cp is 4, but the model has 2 query heads"):
        check_fit(few, PhaseLayouts.parse("cp4,heads"), 4)


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("text", ["cp2", "cp4", "tp2,cp2"])
def test_costs_are_what_moves(kv_heads: int, text: str) -> None:
    """Counted row by row and head by head: what rank 0 has not, it is sent."""
    config = dataclasses.replace(MODEL, num_kv_heads=kv_heads)
    layout = Layout.parse(text)
    found = forms(config, layout, item_bytes=2)
    rows, cp, head = 8, layout.cp, config.head_dim * 2
    own_rows = rows // cp
    kv = -(-kv_heads // layout.tp)
    own_kv = -(-kv_heads // layout.unit)
    queries, own_queries = 8 // layout.tp, 8 // layout.unit
    arriving = (rows - own_rows) * (own_queries + 2 * own_kv) * head
    returning = own_rows * (queries - own_queries) * head
    assert found["heads"].wire_bytes * rows == arriving + returning
    assert found["gather"].wire_bytes * rows == (rows - own_rows) * 2 * kv * head
    assert found["ring"].wire_bytes == found["gather"].wire_bytes
    assert found["gather"].cached_bytes == 3 * 2 * kv * head
    assert found["ring"].cached_bytes * cp == found["gather"].cached_bytes


@pytest.mark.parametrize(("text", "source"), [("cp2", "default"), ("cp2,ring", "explicit")])
def test_the_ledger_has_every_way_with_its_costs(text: str, source: str) -> None:
    needs = dataclasses.replace(NEEDS, cache_bytes=1000)
    asked = PhaseLayouts.parse(text)
    decision = exchange_decision(MODEL, settled(MODEL, asked, needs), needs, asked=asked)
    assert decision.chosen.endswith("in a ring")
    assert decision.source == source
    assert any("192 bytes a token" in reason for reason in decision.reasons)
    assert [each.candidate for each in decision.rejected] == [
        "all-to-all by heads",
        "keys and values gathered",
    ]
    assert "384 bytes a token" in decision.rejected[1].reasons[0]


@pytest.mark.parametrize(
    ("cache_bytes", "words"),
    [(1000, "which does not fit"), (1 << 30, "leave ring out"), (None, "leave ring out")],
)
def test_a_ring_says_what_keeping_keys_would_take(cache_bytes: int | None, words: str) -> None:
    """A rank that kept the keys of earlier chunks would have those that gather has."""
    needs = dataclasses.replace(NEEDS, cache_bytes=cache_bytes)
    asked = PhaseLayouts.parse("cp2,ring")
    decision = exchange_decision(MODEL, settled(MODEL, asked, needs), needs, asked=asked)
    (reason,) = [reason for reason in decision.reasons if "go around again" in reason]
    gathered = forms(MODEL, Layout.parse("cp2"), needs.item_bytes)["gather"].cached_bytes
    assert f"{needs.context * gathered} bytes" in reason
    assert words in reason


def test_a_page_needs_equal_parts() -> None:
    with pytest.raises(InvalidConfig, match=r"page_size is 16, but 3 .* as 18"):
        check_page(PhaseLayouts.parse("cp3,ring"), 16)
    check_page(PhaseLayouts.parse("cp3,ring"), 18)
    check_page(PhaseLayouts.parse("cp3,gather"), 16)


def test_a_short_cache_is_dealt_out_by_itself(
    pair: Any, alone: Callable[..., Any], model_folder: Callable[..., Path]
) -> None:
    """A sequence that fits on no rank alone is served by two."""
    folder = model_folder(num_key_value_heads=1)
    prompt = tuple(11 * i % 240 for i in range(100))
    one_token = 3 * 2 * 16 * 4
    asked = {"max_model_len": 128, "kv_cache_bytes": 80 * one_token}
    with pytest.raises(InvalidConfig, match="kv_cache_bytes"):
        alone(folder, ((prompt,),), **asked)
    found = pair.generate("cp2", folder, ((prompt,),), **asked)
    assert dict(found["decisions"])["layout"] == "cp2,ring"
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, ((prompt,),))]
