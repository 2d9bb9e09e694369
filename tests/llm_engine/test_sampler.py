"""Each sampling rule against its definition, and rows that do not disturb each other."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.sampler import Sampled, SamplerRow, make_generator, sample
from llm_engine.types import SamplingParams

VOCAB = 50


def _row(
    seed: int = 0,
    prompt: tuple[int, ...] = (),
    generated: tuple[int, ...] = (),
    banned: tuple[int, ...] = (),
    **params: Any,
) -> SamplerRow:
    return SamplerRow(
        params=SamplingParams(**params),
        generator=make_generator(seed, 0),
        prompt_ids=prompt,
        generated_ids=generated,
        banned_ids=banned,
    )


def _logits(seed: int = 0, rows: int = 1, vocab: int = VOCAB) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def _token(logits: torch.Tensor, row: SamplerRow) -> int:
    (sampled,) = sample(logits, [row])
    assert sampled is not None
    return sampled.token_id


def _support(logits: torch.Tensor, **params: Any) -> set[int]:
    row = _row(**params)
    return {_token(logits, row) for _ in range(400)}


def _expected_support(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    order = logits[0].argsort(descending=True)[: top_k or None]
    probs = logits[0, order].double().softmax(-1)
    kept, mass = [], 0.0
    for token_id, prob in zip(order.tolist(), probs.tolist(), strict=True):
        if mass < top_p and prob >= min_p * float(probs[0]):
            kept.append(token_id)
        mass += prob
    return set(kept)


@pytest.mark.parametrize("greedy", [{"temperature": 0.0}, {"top_p": 0.0}])
def test_greedy_takes_the_likeliest(greedy: dict[str, float]) -> None:
    logits = _logits(rows=4)
    tokens = sample(logits, [_row(**greedy)] * 4)
    assert [t.token_id for t in tokens if t] == logits.argmax(-1).tolist()


@settings(deadline=None)
@given(
    seed=st.integers(0, 50),
    top_k=st.sampled_from([0, 1, 3, 60]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_only_allowed_tokens_are_drawn(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    logits = _logits(seed)
    row = _row(seed, top_k=top_k, top_p=top_p, min_p=min_p)
    allowed = _expected_support(logits, top_k, top_p, min_p)
    assert {_token(logits, row) for _ in range(20)} <= allowed


def test_every_allowed_token_is_drawn() -> None:
    logits = _logits(5) / 3
    params = {"top_k": 8, "top_p": 0.8, "min_p": 0.1}
    assert _support(logits, **params) == _expected_support(logits, **params)


def test_draws_follow_the_distribution() -> None:
    logits = _logits(9, vocab=6) / 3
    row = _row(seed=1, temperature=0.7)
    counts = Counter(_token(logits, row) for _ in range(4000))
    expected = (logits[0] / 0.7).softmax(-1)
    observed = torch.tensor([counts[i] / 4000 for i in range(6)])
    # Five standard deviations of a share, at most sqrt(1/4 / 4000).
    assert (observed - expected).abs().max() < 5 * 0.5 / 4000**0.5


def test_a_nucleus_wider_than_the_first_candidates_is_exact() -> None:
    logits = torch.zeros(1, 5000)
    row = _row(seed=2, top_p=0.9)
    tokens = {_token(logits, row) for _ in range(300)}
    assert len(tokens) > 250
    assert max(tokens) < 4501


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.data())
def test_other_rows_change_nothing(seed: int, data: st.DataObject) -> None:
    params = data.draw(
        st.sampled_from(
            [
                {},
                {"top_k": 5},
                {"top_p": 0.7, "temperature": 1.5},
                {"min_p": 0.1, "presence_penalty": 1.0},
            ]
        )
    )
    logits = _logits(3, rows=4)
    alone = _token(logits[1:2], _row(seed, generated=(4, 4, 9), **params))
    others = [_row(1, top_k=2), _row(2, temperature=0.0), _row(3, min_p=0.5, top_p=0.3)]
    rows = [others[0], _row(seed, generated=(4, 4, 9), **params), *others[1:]]
    together = sample(logits, rows)[1]
    assert together is not None
    assert together.token_id == alone


def test_choices_of_one_seed_differ() -> None:
    draws = {float(torch.rand((), generator=make_generator(5, i))) for i in range(20)}
    assert len(draws) == 20


def test_penalties_follow_their_formulas() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0, 0.0]])
    assert _token(logits, _row(temperature=0.0, generated=(0,), presence_penalty=0.2)) == 1
    assert _token(logits, _row(temperature=0.0, generated=(0, 0, 0), frequency_penalty=0.02)) == 0
    assert _token(logits, _row(temperature=0.0, generated=(0,) * 6, frequency_penalty=0.02)) == 1
    assert _token(logits, _row(temperature=0.0, prompt=(0,), repetition_penalty=1.2)) == 1
    negative = torch.tensor([[-1.0, -1.1]])
    assert _token(negative, _row(temperature=0.0, prompt=(0,), repetition_penalty=1.2)) == 1


def test_bias_and_bans_apply() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    assert _token(logits, _row(temperature=0.0, logit_bias={2: 5.0})) == 2
    assert _token(logits, _row(temperature=0.0, banned=(0,))) == 1
    assert _support(logits, logit_bias={0: -100.0, 1: -100.0}) == {2}
    assert logits.tolist() == [[2.0, 1.0, 0.0]]


def test_logprobs_are_those_of_the_model_itself() -> None:
    logits = _logits(4)
    row = _row(temperature=0.3, top_k=1, logit_bias={7: 3.0}, logprobs=True, top_logprobs=5)
    (sampled,) = sample(logits, [row])
    assert isinstance(sampled, Sampled)
    expected = logits[0].double().log_softmax(-1)
    assert sampled.logprob == pytest.approx(float(expected[sampled.token_id]), abs=1e-5)
    assert [i for i, _ in sampled.top] == expected.topk(5).indices.tolist()
    assert [p for _, p in sampled.top] == pytest.approx(expected.topk(5).values.tolist(), abs=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_yield_none_for_their_row_only(bad: float) -> None:
    logits = _logits(rows=3)
    logits[1, 4] = bad
    rows = [_row(), _row(), _row(temperature=0.0)]
    first, second, third = sample(logits, rows)
    assert second is None
    assert first is not None
    assert third is not None
