"""The sampler's oracle: each rule in float64, as it is written down."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from llm_engine.sampler import LogitBias, SamplerRow, TokenHistory
from llm_engine.types import SamplingParams


def _adjusted(
    logits: Any, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]
) -> Any:
    out = np.array(logits, dtype=np.float64)
    counts = Counter(answer)
    for token in {*prompt, *answer}:
        x = out[token]
        penalty = params.repetition_penalty
        out[token] = x / penalty if x > 0 else x * penalty
        if counts[token]:
            out[token] -= params.presence_penalty + params.frequency_penalty * counts[token]
    for token, bias in params.logit_bias.items():
        out[token] += bias
    return out


@pytest.fixture(scope="session")
def oracle_probs() -> Callable[..., Any]:
    """Probability of each token, float64 (V), and how near the nearest cut came to a token."""

    def probs(
        logits: Any,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        answer: Sequence[int] = (),
        allowed: Any = None,
    ) -> tuple[Any, float]:
        out = _adjusted(logits, params, prompt, answer)
        if allowed is not None:
            out[~allowed] = -np.inf
        scaled = (out - out.max()) / params.temperature
        order = np.argsort(-scaled, kind="stable")
        if params.top_k:
            order = order[: params.top_k]
        mass = np.exp(scaled[order])
        share = mass / mass.sum()
        above = np.concatenate(([0.0], share.cumsum()[:-1]))
        gap = 1.0
        keep = np.ones(len(order), dtype=bool)
        if params.top_p < 1.0:
            keep &= above < params.top_p
            gap = min(gap, np.abs(above - params.top_p).min())
        if params.min_p:
            keep &= mass >= params.min_p
            # The likeliest token stands exactly at min_p = 1.
            gap = min(gap, np.abs(mass[1:] - params.min_p).min(initial=1.0))
        keep[0] = True
        result = np.zeros(len(out))
        result[order[keep]] = mass[keep] / mass[keep].sum()
        return result, gap

    return probs


@pytest.fixture(scope="session")
def make_row() -> Callable[..., SamplerRow]:
    """Builds a row; keywords are sampling parameters."""

    def build(
        uniform: float = 0.5,
        *,
        prompt: Sequence[int] = (),
        answer: Sequence[int] = (),
        drafts: tuple[int, ...] = (),
        banned: Sequence[int] = (),
        bitmask: Any = None,
        **params: Any,
    ) -> SamplerRow:
        sampling = SamplingParams(**params)
        history = TokenHistory.of(sampling, prompt)
        for token in answer:
            if history is not None:
                history.push(token)
        return SamplerRow(
            params=sampling,
            uniform=uniform,
            history=history,
            draft_ids=drafts,
            bias=LogitBias.of(sampling.logit_bias),
            banned_ids=np.array(banned, dtype=np.int64) if banned else None,
            bitmask_W=bitmask,
        )

    return build
