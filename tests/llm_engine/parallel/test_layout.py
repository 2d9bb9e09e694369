"""Layouts as text, and which of them a model and a group allow."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llm_engine.errors import InvalidConfig
from llm_engine.model_config import ModelConfig, MoeConfig, RopeConfig
from llm_engine.parallel.exchange_choice import settled
from llm_engine.parallel.layout import Layout, PhaseLayouts
from llm_engine.parallel.mesh import axis_ranks
from llm_engine.parallel.place import Place
from llm_engine.parallel.shares import check_fit

MOE = MoeConfig(
    num_experts=6,
    num_experts_per_token=2,
    intermediate_size=32,
    is_renormalised=True,
    sparse_step=1,
    dense_layers=frozenset(),
)
MODEL = ModelConfig(
    architecture="Qwen3MoeForCausalLM",
    vocab_size=257,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=12,
    num_kv_heads=4,
    head_dim=16,
    rms_eps=1e-6,
    max_position=512,
    is_tied=False,
    rope=RopeConfig(theta=1e4),
    moe=MOE,
)
layouts = st.builds(
    lambda **axes: axes,
    dp=st.sampled_from((1, 1, 2, 3)),
    tp=st.sampled_from((1, 2, 3, 4)),
    cp=st.sampled_from((1, 2, 4)),
    ep=st.sampled_from((1, 2, 4, 8)),
    pp=st.integers(1, 3),
)


def made(axes: dict[str, int]) -> Layout:
    width = axes["tp"] * axes["cp"] * axes["dp"]
    assume(max(width, axes["ep"]) % min(width, axes["ep"]) == 0)
    assume(axes["dp"] == 1 or (axes["pp"] == 1 and axes["ep"] <= width))
    return Layout(**axes)


@given(layouts)
def test_text_is_read_back(axes: dict[str, int]) -> None:
    layout = made(axes)
    assert Layout.parse(str(layout)) == layout


@given(layouts)
def test_places_are_a_grid(axes: dict[str, int]) -> None:
    layout = made(axes)
    places = [Place.of(layout, rank) for rank in range(layout.num_ranks)]
    assert len(set(places)) == layout.num_ranks
    for axis in ("tp", "cp", "dp", "unit", "peers", "rows"):
        groups = {axis_ranks(layout, rank, axis) for rank in range(layout.num_ranks)}
        # Every rank is in exactly one group of each axis.
        assert sorted(rank for group in groups for rank in group) == list(range(layout.num_ranks))


def test_two_phases() -> None:
    both = PhaseLayouts.parse("cp2 -> tp2")
    assert (both.prefill, both.decode) == (Layout(cp=2), Layout(tp=2))
    assert str(both) == "cp2->tp2"
    assert both.is_hybrid
    assert both.held_tp == 1
    assert PhaseLayouts.parse("tp2").num_ranks == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tp", "'tp' is no axis"),
        ("tp0", "'tp0' is no axis"),
        ("", "'' is no axis"),
        ("xp2", "'xp2' is no axis"),
        ("tp2,tp2", "tp twice"),
        ("tp2,ep3", "do not divide"),
        ("tp2,gather", "add cp2"),
        ("tp2,ep2,a2a", "cp2,ep2,a2a"),
        ("cp2->tp4", "tp x cp is 2 for prefill and 4"),
        ("cp2->tp2->tp2", "more than two phases"),
        ("tp2->pp2", "one works at a time"),
        ("pp2->cp2", "pp2->tp2"),
        ("dp2->tp2", "dp is 2 for prefill and 1"),
        ("dp2,pp2", "leave pp out"),
        ("dp2,ep4", "leave pp out"),
        ("dp2,cp2->dp2,tp4", "tp x cp is 2 for prefill and 4"),
        ("dp2,tp2,ep4,a2a", "a2a needs rows"),
        ("pp2,tp2->tp2", "tp2,pp2->tp4"),
        ("pp2,ep2->tp4,ep2", "ep2,pp2->tp4,ep4"),
        ("pp2->tp4,ep4", "pp2->tp2"),
        ("tp2,pp2->tp4,ep4", "tp2,pp2->tp4,ep2"),
        ("tp2,ep4,pp2->tp8,ep8", "take ep2"),
        ("pp2->dp2,tp2", "pp2->tp2"),
        ("pp4->tp2,pp2", "one works at a time"),
        ("cp2,ep2->tp2", "ep is 2 for prefill and 1"),
        ("cp2,gather->tp2", "leave it out"),
        ("tp2,cp3->tp3,cp2", "divide the other"),
    ],
)
def test_refused_texts(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        PhaseLayouts.parse(text)


@pytest.mark.parametrize(
    ("text", "num_ranks", "reason"),
    [
        ("tp2", 4, "is for 2 ranks, the group has 4"),
        ("tp2,cp3", 6, "5 over 2: take a tp x cp that divides 4"),
        ("tp16", 16, "model has 12 query heads"),
        ("pp4", 4, "model has 3 layers"),
        ("ep8", 8, "model has 6 experts"),
    ],
)
def test_refused_for_a_model(text: str, num_ranks: int, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        check_fit(MODEL, PhaseLayouts.parse(text), num_ranks)


def test_experts_need_a_model_that_has_some() -> None:
    dense = dataclasses.replace(MODEL, moe=None)
    with pytest.raises(InvalidConfig, match="no experts"):
        check_fit(dense, PhaseLayouts.parse("tp2,ep2"), 2)


def test_exchange_follows_the_heads() -> None:
    few = dataclasses.replace(MODEL, num_kv_heads=1)
    assert settled(MODEL, PhaseLayouts.parse("cp2")).prefill.exchange == "heads"
    assert settled(few, PhaseLayouts.parse("cp2")).prefill.exchange == "gather"
    # With another layout for decoding, only a cache by head serves both.
    assert settled(few, PhaseLayouts.parse("cp2->tp2")).prefill.exchange == "heads"
    assert settled(few, PhaseLayouts.parse("cp2,heads")).prefill.exchange == "heads"
