"""Log probabilities are those of the model itself, before temperature and penalties."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from llm_engine.sampler import Sampled, SamplerRow, sample, score


@pytest.mark.parametrize("vocab", [5, 50, 700, 5000])
def test_logprobs_are_those_of_the_logits_as_given(
    make_row: Callable[..., SamplerRow], vocab: int
) -> None:
    logits = 3 * torch.randn(1, vocab, generator=torch.Generator().manual_seed(4))
    row = make_row(temperature=0.3, top_k=1, logit_bias={3: 3.0}, logprobs=True, top_logprobs=5)
    (sampled,) = sample(logits, [row])
    assert isinstance(sampled, Sampled)
    expected = logits[0].double().log_softmax(-1)
    assert sampled.logprob == pytest.approx(float(expected[sampled.token_id]), abs=1e-5)
    assert [i for i, _ in sampled.top] == expected.topk(5).indices.tolist()
    assert [p for _, p in sampled.top] == pytest.approx(expected.topk(5).values.tolist(), abs=1e-5)


def test_equal_tokens_come_in_their_order() -> None:
    ((_, top),) = filter(None, score(np.zeros((1, 700), dtype=np.float32), [0], 4))
    assert [token for token, _ in top] == [0, 1, 2, 3]


def test_impossible_tokens_are_no_alternatives() -> None:
    logits = np.full((1, 700), -np.inf, dtype=np.float32)
    logits[0, [7, 600]] = 1.0
    ((logprob, top),) = filter(None, score(logits, [600], 5))
    assert logprob == pytest.approx(-np.log(2))
    assert [token for token, _ in top] == [7, 600]


def test_rows_that_are_not_finite_have_no_score() -> None:
    logits = np.zeros((2, 9), dtype=np.float32)
    logits[1, 3] = np.nan
    assert [result is None for result in score(logits, [0, 0], 2)] == [False, True]
