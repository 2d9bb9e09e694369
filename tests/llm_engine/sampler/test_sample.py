"""Each sampling rule against its definition, and rows that do not disturb each other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from llm_engine.sampler import PositionUniforms, Sampled, SamplerRow, Unsampled, sample
from llm_engine.structured.matcher import allocate_bitmask
from llm_engine.types import SamplingParams

Make = Callable[..., SamplerRow]
NUM_POINTS = 256

_CUTS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.2, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 3, 20, 60, 2000]),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    }
)
_PENALTIES = st.fixed_dictionaries(
    {
        "repetition_penalty": st.sampled_from([0.7, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.3]),
        "logit_bias": st.dictionaries(st.integers(0, 49), st.sampled_from([-100.0, 1.0, 2.5])),
    }
)


def _logits(seed: int = 0, rows: int = 1, vocab: int = 50) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def _token(logits: torch.Tensor, row: SamplerRow) -> int:
    (sampled,) = sample(logits, [row])
    assert isinstance(sampled, Sampled)
    return sampled.token_id


def _shares(logits: torch.Tensor, rows: list[SamplerRow]) -> Any:
    """How often each token comes when the uniform numbers are spread evenly."""
    results = sample(logits.expand(len(rows), -1), rows)
    tokens = [result.token_id for result in results if isinstance(result, Sampled)]
    return np.bincount(tokens, minlength=logits.shape[1])


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_p": 0.0}])
def test_greedy_takes_the_likeliest(make_row: Make, greedy: dict[str, float]) -> None:
    logits = _logits(rows=4)
    tokens = sample(logits, [make_row(**greedy)] * 4)
    assert [t.token_id for t in tokens if isinstance(t, Sampled)] == logits.argmax(-1).tolist()


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 50), st.sampled_from([5, 50, 700, 5000]), _CUTS)
def test_evenly_spread_numbers_yield_each_token_as_often_as_it_is_likely(
    make_row: Make, oracle_probs: Callable[..., Any], seed: int, vocab: int, cuts: dict[str, Any]
) -> None:
    logits = _logits(seed, vocab=vocab)
    expected, gap = oracle_probs(logits[0].numpy(), SamplingParams(**cuts))
    assume(gap > 1e-5)
    rows = [make_row((i + 0.5) / NUM_POINTS, **cuts) for i in range(NUM_POINTS)]
    counts = _shares(logits, rows)
    assert counts.sum() == NUM_POINTS
    assert not counts[expected == 0].any()
    # An interval of length p holds N p points, up to one at either end.
    assert np.abs(counts - NUM_POINTS * expected).max() <= 1.001


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 50),
    _PENALTIES,
    st.lists(st.integers(0, 49), max_size=12),
    st.lists(st.integers(0, 49), max_size=200),
    st.integers(0, 3),
)
def test_penalties_bias_and_drafts_follow_their_formulas(
    make_row: Make,
    oracle_probs: Callable[..., Any],
    seed: int,
    penalties: dict[str, Any],
    prompt: list[int],
    answer: list[int],
    num_drafts: int,
) -> None:
    logits = _logits(seed)
    said, drafts = answer[: len(answer) - num_drafts], answer[len(answer) - num_drafts :]
    assume(len(said) + len(drafts) == len(answer))
    expected, _ = oracle_probs(logits[0].numpy(), SamplingParams(**penalties), prompt, answer)
    row = make_row(prompt=prompt, answer=said, drafts=tuple(drafts), **penalties)
    rows = [
        SamplerRow(row.params, (i + 0.5) / NUM_POINTS, row.history, row.draft_ids, row.bias)
        for i in range(NUM_POINTS)
    ]
    assert np.abs(_shares(logits, rows) - NUM_POINTS * expected).max() <= 1.001


def test_draws_follow_the_distribution(make_row: Make, oracle_probs: Callable[..., Any]) -> None:
    logits = _logits(9, vocab=12) / 3
    expected, _ = oracle_probs(logits[0].numpy(), SamplingParams(temperature=0.7))
    uniforms = PositionUniforms(1234, 0)
    rows = [make_row(uniforms.drawing(i), temperature=0.7) for i in range(5000)]
    counts = _shares(logits, rows)
    assert stats.chisquare(counts, 5000 * expected).pvalue > 0.001


def test_equal_logits_are_kept_in_the_order_of_tokens(make_row: Make) -> None:
    logits = torch.zeros(1, 700)
    counts = _shares(logits, [make_row((i + 0.5) / 64, top_k=8) for i in range(64)])
    assert counts[:8].tolist() == [8] * 8
    assert counts[8:].sum() == 0


def test_a_flat_nucleus_is_exact(make_row: Make) -> None:
    logits = torch.zeros(1, 5000)
    rows = [make_row((i + 0.5) / 450, top_p=0.9) for i in range(450)]
    counts = _shares(logits, rows)
    assert counts.nonzero()[0].tolist() == pytest.approx(range(5, 4500, 10), abs=1)


_ROW = st.one_of(
    st.fixed_dictionaries({"temperature": st.just(0.0)}),
    _CUTS,
    st.fixed_dictionaries(
        {
            "min_p": st.just(0.1),
            "presence_penalty": st.just(1.0),
            "logprobs": st.just(True),
            "top_logprobs": st.integers(0, 5),
        }
    ),
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([50, 700, 3000]), st.lists(_ROW, min_size=2, max_size=9), st.data())
def test_other_rows_change_nothing(
    make_row: Make, vocab: int, kinds: list[dict[str, Any]], data: st.DataObject
) -> None:
    uniforms = [data.draw(st.floats(0, 1, exclude_max=True)) for _ in kinds]
    logits = _logits(data.draw(st.integers(0, 9)), rows=len(kinds), vocab=vocab)
    rows = [make_row(u, answer=(4, 4, 9), **kind) for u, kind in zip(uniforms, kinds, strict=True)]
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert sample(logits, rows) == alone


def test_bans_and_masks_apply_and_the_logits_stay(make_row: Make) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    assert _token(logits, make_row(temperature=0.0, banned=(0,))) == 1
    mask = allocate_bitmask(1, 3)[0]
    mask[0] = 0b110
    assert _token(logits, make_row(temperature=0.0, bitmask=mask)) == 1
    assert _token(logits, make_row(temperature=0.0, bitmask=mask, banned=(1,))) == 2
    assert logits.tolist() == [[2.0, 1.0, 0.0]]


def test_a_constraint_that_leaves_only_the_end_beats_min_tokens(make_row: Make) -> None:
    mask = allocate_bitmask(1, 3)[0]
    mask[0] = 0b100
    row = make_row(temperature=0.0, bitmask=mask, banned=(2,))
    assert _token(torch.tensor([[2.0, 1.0, 0.0]]), row) == 2


def test_a_mask_that_ends_early_forbids_the_rest(make_row: Make) -> None:
    logits = _logits(vocab=70)
    mask = torch.full((2,), -1, dtype=torch.int32)
    logits[0, 65] = 50.0
    assert _token(logits, make_row(temperature=0.0, bitmask=mask)) < 64


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_have_no_token_in_their_row_only(make_row: Make, bad: float) -> None:
    logits = _logits(rows=3)
    logits[1, 4] = bad
    first, second, third = sample(
        logits, [make_row(), make_row(logprobs=True), make_row(temperature=0.0)]
    )
    assert second is Unsampled.NOT_FINITE
    assert isinstance(first, Sampled)
    assert isinstance(third, Sampled)


def test_a_mask_without_tokens_is_told_from_broken_logits(make_row: Make) -> None:
    mask = torch.zeros(2, dtype=torch.int32)
    assert sample(_logits(), [make_row(bitmask=mask)]) == [Unsampled.NOTHING_ALLOWED]


@pytest.mark.parametrize("temperature", [1e-40, 1e-9, 100.0])
def test_extreme_temperatures_draw(make_row: Make, temperature: float) -> None:
    logits = _logits()
    token = _token(logits, make_row(temperature=temperature))
    assert temperature == 100.0 or token == int(logits.argmax())


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(
    make_row: Make, uniform: float, cut: dict[str, Any]
) -> None:
    logits = _logits(vocab=700)
    logits[0, 0] = logits[0, -1] = float("-inf")
    assert 0 < _token(logits, make_row(uniform, **cut)) < 699
