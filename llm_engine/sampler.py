"""Choosing the next token from the logits.

Order: repetition, presence and frequency penalties, logit bias, min_tokens; then temperature,
top_k, top_p, min_p; then one uniform number per token against the cumulated probabilities.
A row's result depends on that row alone, never on the rows beside it.
"""

# S rows, R drawn rows, V vocabulary, K candidates.

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from llm_engine.types import SamplingParams

_FIRST_CANDIDATES = 1024
_CHOICE_STRIDE = 0x9E3779B97F4A7C15
_SEED_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token; log probabilities (natural) where they were asked for, best first."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """What the sampler must know of one sequence. `banned_ids` may not be chosen this time."""

    params: SamplingParams
    generator: torch.Generator
    prompt_ids: Sequence[int]
    generated_ids: Sequence[int]
    banned_ids: Sequence[int]


def make_generator(seed: int, choice_index: int) -> torch.Generator:
    """A generator on the CPU for one choice of one request; choices get unrelated streams."""
    generator = torch.Generator(device="cpu")
    generator.manual_seed((seed ^ (choice_index * _CHOICE_STRIDE)) & _SEED_MASK)
    return generator


def sample(logits_SV: torch.Tensor, rows: Sequence[SamplerRow]) -> list[Sampled | None]:
    """Choose one token per row.

    Shapes: logits (S, V), float32. A row without a finite maximum yields None.
    """
    is_sound_S = _to_list(logits_SV.amax(dim=-1).isfinite())
    adjusted_SV = _adjust(logits_SV, rows)
    chosen = _to_list(adjusted_SV.argmax(dim=-1))
    drawn = [i for i, row in enumerate(rows) if not row.params.is_greedy and is_sound_S[i]]
    if drawn:
        picked_RV = adjusted_SV if len(drawn) == len(rows) else adjusted_SV[drawn]
        for i, token_id in zip(drawn, _draw(picked_RV, [rows[i] for i in drawn]), strict=True):
            chosen[i] = token_id
    return [
        _with_logprobs(logits_SV[i], token_id, rows[i].params) if is_sound_S[i] else None
        for i, token_id in enumerate(chosen)
    ]


def _adjust(logits_SV: torch.Tensor, rows: Sequence[SamplerRow]) -> torch.Tensor:
    needing = [i for i, row in enumerate(rows) if _needs_adjustment(row)]
    if not needing:
        return logits_SV
    adjusted_SV = logits_SV.clone()
    for i in needing:
        _penalise(adjusted_SV[i], rows[i])
        params = rows[i].params
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias))
            adjusted_SV[i].index_add_(0, ids, torch.tensor(list(params.logit_bias.values())))
        if rows[i].banned_ids:
            adjusted_SV[i, list(rows[i].banned_ids)] = float("-inf")
    return adjusted_SV


def _needs_adjustment(row: SamplerRow) -> bool:
    params = row.params
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or row.banned_ids
    )


def _penalise(logits_V: torch.Tensor, row: SamplerRow) -> None:
    params = row.params
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.prompt_ids, *row.generated_ids}))
        values = logits_V[seen]
        penalty = params.repetition_penalty
        logits_V[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if (params.presence_penalty or params.frequency_penalty) and row.generated_ids:
        counts_V = torch.tensor(row.generated_ids).bincount(minlength=logits_V.numel())
        logits_V -= params.presence_penalty * (counts_V > 0) + params.frequency_penalty * counts_V


def _draw(logits_RV: torch.Tensor, rows: Sequence[SamplerRow]) -> list[int]:
    temperatures = torch.tensor([row.params.temperature for row in rows]).unsqueeze(1)
    scaled_RV = (logits_RV - logits_RV.amax(dim=-1, keepdim=True)) / temperatures
    probs_RV = scaled_RV.softmax(dim=-1)
    uniforms = [float(torch.rand((), generator=row.generator, dtype=torch.float64)) for row in rows]
    tokens = [0] * len(rows)
    is_filtered = [bool(row.params.top_k) or row.params.top_p < 1.0 for row in rows]
    plain = [i for i, filtered in enumerate(is_filtered) if not filtered]
    if plain:
        picks = _pick(probs_RV[plain], plain, rows, uniforms)
        for i, token_id in zip(plain, picks, strict=True):
            tokens[i] = token_id
    for i in (i for i, filtered in enumerate(is_filtered) if filtered):
        probs_K, ids_K = _nucleus(probs_RV[i], rows[i].params)
        (pick,) = _pick(probs_K.unsqueeze(0), [i], rows, uniforms)
        tokens[i] = int(ids_K[pick])
    return tokens


def _nucleus(probs_V: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates after top_k and top_p, likeliest first; those cut by top_p have probability 0."""
    size = min(params.top_k or _FIRST_CANDIDATES, probs_V.numel())
    probs_K, ids_K = probs_V.topk(size)
    if params.top_k:
        probs_K = probs_K / probs_K.sum()
    elif float(probs_K.sum()) < params.top_p:
        probs_K, ids_K = probs_V.sort(descending=True, stable=True)
    mass_before_K = probs_K.cumsum(0) - probs_K
    probs_K = probs_K.masked_fill(mass_before_K >= params.top_p, 0.0)
    return probs_K, ids_K


def _pick(
    probs_RV: torch.Tensor,
    indices: Sequence[int],
    rows: Sequence[SamplerRow],
    uniforms: Sequence[float],
) -> list[int]:
    """Invert the cumulated probabilities, in the order given, after cutting by min_p."""
    if any(rows[i].params.min_p for i in indices):
        floors = torch.tensor([rows[i].params.min_p for i in indices]).unsqueeze(1)
        is_low = probs_RV < floors * probs_RV.amax(dim=-1, keepdim=True)
        probs_RV = probs_RV.masked_fill(is_low, 0.0)
    cumulated_RV = probs_RV.cumsum(dim=-1, dtype=torch.float64)
    draws = torch.tensor([uniforms[i] for i in indices], dtype=torch.float64).unsqueeze(1)
    targets = draws * cumulated_RV[:, -1:]
    picks = torch.searchsorted(cumulated_RV, targets, right=True)
    return _to_list(picks.clamp_(max=probs_RV.shape[-1] - 1).flatten())


def _with_logprobs(logits_V: torch.Tensor, token_id: int, params: SamplingParams) -> Sampled:
    if not params.logprobs:
        return Sampled(token_id, None, ())
    logprobs_V = logits_V.log_softmax(dim=-1)
    values, ids = logprobs_V.topk(params.top_logprobs)
    top = tuple(zip(_to_list(ids), [float(value) for value in values], strict=True))
    logprob = float(logprobs_V[token_id])
    assert not math.isnan(logprob)
    return Sampled(token_id, logprob, top)


def _to_list(values: torch.Tensor) -> list[int]:
    """One transfer for all elements; torch does not type its own `tolist`."""
    return cast(Any, values).tolist()
