"""Shares are disjoint, complete, balanced, and nest from one phase to the other."""

import dataclasses
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from llm_engine.errors import InvalidConfig
from llm_engine.model_config import ModelConfig, MoeConfig, RopeConfig
from llm_engine.parallel.exchange_choice import settled
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.place import Place
from llm_engine.parallel.shares import (
    WeightShare,
    cached_heads,
    check_fit,
    head_rows,
    head_shares,
    held_share,
    local_config,
    phase_share,
    ranges,
    stage_share,
)

TEXTS = (
    *("tp2", "tp3", "tp4", "cp2", "cp4", "pp2", "pp3", "tp2,pp2", "tp2,cp2", "cp2->tp2"),
    *("tp2,cp2->tp4", "cp4->tp4", "cp4->tp2,cp2", "cp3->tp3", "cp2,pp2->tp2,pp2", "tp2,cp4->tp8"),
    *("dp2", "dp3", "dp2,tp2", "dp3,tp2"),
    *("dp2,cp2", "dp3,cp2->dp3,tp2", "dp2,tp2,cp2", "dp2,tp2,cp2->dp2,tp4"),
)
RESTAGED = ("pp2->tp2", "pp3->tp3", "tp2,pp2->tp4", "tp3,pp2->tp6", "cp2,pp2->tp4", "tp2,pp3->tp6")
RESTAGED_EXPERTS = (
    *("pp2->tp2", "pp2->tp2,ep2", "pp3->tp3,ep3", "ep2,pp2->tp4,ep4", "tp2,pp2->tp4,ep2"),
    *("cp2,ep2,pp2->tp4,ep4", "cp2,pp2->tp4,ep2", "tp2,ep2,pp2->tp4,ep4"),
)
EXPERT_TEXTS = (
    *("ep2", "tp2,ep2", "tp4,ep2", "tp2,ep4", "cp2,ep2->tp2,ep2", "tp2,cp2,ep2", "ep4"),
    *("dp2", "dp2,ep2", "dp2,tp2", "dp2,tp2,ep2", "dp2,tp2,ep4", "dp4,ep2"),
    *("dp2,cp2,ep2", "dp2,cp2,ep4", "dp2,cp2,ep4,a2a->dp2,tp2,ep4"),
)


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    num_kv = draw(st.integers(1, 9))
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=draw(st.integers(64, 300)),
        hidden_size=64,
        intermediate_size=draw(st.integers(16, 99)),
        num_layers=draw(st.integers(3, 7)),
        num_heads=num_kv * draw(st.integers(1, 6)),
        num_kv_heads=num_kv,
        head_dim=16,
        rms_eps=1e-6,
        max_position=512,
        is_tied=draw(st.booleans()),
        rope=RopeConfig(theta=1e4),
    )


@given(st.integers(0, 200), st.integers(1, 12))
def test_ranges_are_disjoint_complete_and_balanced(count: int, parts: int) -> None:
    found = ranges(count, parts)
    assert [i for run in found for i in run] == list(range(count))
    lengths = [len(run) for run in found]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 16))
def test_query_heads_follow_their_keys(num_kv: int, group: int, parts: int) -> None:
    shares = head_shares(num_kv * group, num_kv, parts)
    assert len(shares) == parts
    assert [q for share in shares for q in share.queries] == list(range(num_kv * group))
    assert {kv for share in shares for kv in share.kv} == set(range(num_kv))
    for share in shares:
        assert all(query // group in share.kv for query in share.queries)
    if parts <= num_kv:  # no head lies twice
        assert sum(len(share.kv) for share in shares) == num_kv


@given(models(), st.sampled_from(TEXTS))
def test_phases_lie_within_what_is_held(model: ModelConfig, text: str) -> None:
    layouts = fitting(model, text)
    for layout in (layouts.prefill, layouts.decode):
        for rank in range(layout.num_ranks):
            held, used = held_share(model, layouts, rank), phase_share(model, layout, rank)
            for outer, inner in zip(runs(held), runs(used), strict=True):
                assert set(inner) <= set(outer)
            cached = cached_heads(model, layout, rank)
            assert cached == cached_heads(model, layouts.decode, rank)
            assert set(cached.queries) <= set(used.heads.queries)


@given(models(), st.sampled_from(TEXTS))
def test_terms_of_a_sum_are_complete(model: ModelConfig, text: str) -> None:
    """Along tp, shares cover each channel, head and word once, and one rank adds the biases."""
    layouts = fitting(model, text)
    for layout in (layouts.prefill, layouts.decode):
        ranks = range(0, layout.stage, layout.cp)
        shares = [phase_share(model, layout, rank) for rank in ranks]
        channels = sorted(i for s in shares for i in s.channels)
        assert channels == list(range(model.intermediate_size))
        assert [s.adds_mlp_bias for s in shares] == [True] + [False] * (len(shares) - 1)
        # The ranks of each part of the sequences have all heads and all words between them.
        for part in range(0, len(shares), layout.tp):
            own = shares[part : part + layout.tp]
            assert [i for s in own for i in s.vocabulary] == list(range(model.vocab_size))
            assert [q for s in own for q in s.heads.queries] == list(range(model.num_heads))
            assert [s.adds_bias for s in own] == [True] + [False] * (len(own) - 1)
        stages = [phase_share(model, layout, p * layout.stage).layers for p in range(layout.pp)]
        assert [i for layers in stages for i in layers] == list(range(model.num_layers))
        assert all(a.stop == b.start for a, b in pairwise(stages))


@given(models(), st.integers(4, 13), st.sampled_from(RESTAGED_EXPERTS))
def test_ranks_decode_with_their_stage_s_experts(
    model: ModelConfig, num_experts: int, text: str
) -> None:
    """What a rank uses of its stage lies within what it has; every part is used once."""
    model = dataclasses.replace(model, moe=experts(num_experts))
    layouts = fitting(model, text)
    used: list[tuple[int, int]] = []
    for rank in range(layouts.num_ranks):
        held, stage = held_share(model, layouts, rank), stage_share(model, layouts, rank)
        assert stage is not None
        decoding = phase_share(model, layouts.decode, rank)
        for outer in (stage, held):
            assert set(decoding.experts) <= set(outer.experts)
            assert set(decoding.expert_channels) <= set(outer.expert_channels)
            assert set(decoding.channels) <= set(outer.channels)
            assert set(decoding.heads.queries) <= set(outer.heads.queries)
        assert stage.adds_expert_bias or not decoding.adds_expert_bias
        used += [(e, c) for e in decoding.experts for c in decoding.expert_channels]
        local = local_config(model, held, held.heads, stage)
        assert local.moe is not None
        numbers = [local.moe.num_held(layer) for layer in range(model.num_layers)]
        assert [numbers[layer] for layer in stage.layers] == [len(stage.experts)] * len(
            stage.layers
        )
        assert sum(numbers) == len(stage.experts) * len(stage.layers) + len(decoding.experts) * (
            model.num_layers - len(stage.layers)
        )
    assert sorted(used) == [(e, c) for e in range(num_experts) for c in range(24)]


def experts(num_experts: int) -> MoeConfig:
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_token=2,
        intermediate_size=24,
        is_renormalised=True,
        sparse_step=1,
        dense_layers=frozenset(),
    )


@given(models(), st.integers(4, 9), st.sampled_from(EXPERT_TEXTS))
def test_every_part_of_an_expert_is_held_once(
    model: ModelConfig, num_experts: int, text: str
) -> None:
    model = dataclasses.replace(model, moe=experts(num_experts))
    layouts = fitting(model, text)
    shares = [held_share(model, layouts, rank) for rank in range(layouts.num_ranks)]
    held = [(e, c) for s in shares for e in s.experts for c in s.expert_channels]
    assert sorted(held) == [(e, c) for e in range(num_experts) for c in range(24)]
    assert [s.adds_expert_bias for s in shares].count(True) == layouts.prefill.ep


@given(models(), st.sampled_from((*TEXTS, *RESTAGED)))
def test_logits_are_computed_once_with_words_that_are_held(model: ModelConfig, text: str) -> None:
    layouts = fitting(model, text)
    for layout in (layouts.prefill, layouts.decode):
        last = range(layout.num_ranks - layout.stage, layout.num_ranks)
        rows = {rank: head_rows(model, layout, Place.of(layout, rank)) for rank in last}
        assert sorted(word for run in rows.values() for word in run) == list(
            range(model.vocab_size)
        )
        for rank, run in rows.items():
            assert set(run) <= set(held_share(model, layouts, rank).head)


@given(models(), st.sampled_from(RESTAGED))
def test_stages_hold_what_their_ranks_decode_with(model: ModelConfig, text: str) -> None:
    layouts = fitting(model, text)
    for rank in range(layouts.num_ranks):
        held, stage = held_share(model, layouts, rank), stage_share(model, layouts, rank)
        assert stage is not None
        used = phase_share(model, layouts.decode, rank)
        cached = cached_heads(model, layouts.prefill, rank)
        assert set(used.layers) == set(held.layers) == set(range(model.num_layers))
        assert set(cached.queries) <= set(stage.heads.queries)
        for outer, inner in ((stage, used), (held, used)):
            for name in ("queries", "kv"):
                assert set(getattr(inner.heads, name)) <= set(getattr(outer.heads, name))
            assert set(inner.channels) <= set(outer.channels)
        # A bias is added by one rank of those that decode, which has to have it.
        assert stage.adds_bias or not used.adds_bias
        for phase in (layouts.prefill, layouts.decode):
            needed = phase_share(model, phase, rank)
            assert set(needed.vocabulary) <= set(held.vocabulary)
            assert set(needed.head) <= set(held.head)


def fitting(model: ModelConfig, text: str) -> PhaseLayouts:
    layouts = PhaseLayouts.parse(text)
    try:
        check_fit(model, layouts, layouts.num_ranks)
    except InvalidConfig:
        assume(False)
    return settled(model, layouts)


def runs(share: WeightShare) -> tuple[range, ...]:
    return (
        *(share.heads.queries, share.heads.kv, share.channels, share.vocabulary, share.head),
        *(share.layers, share.experts, share.expert_channels),
    )
