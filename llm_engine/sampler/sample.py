"""One token per row: rows that need it adjusted, the likeliest found, the others drawn."""

# S rows, R rows of one kind, V vocabulary.

import math
from collections.abc import Sequence

import numpy as np
import torch

from llm_engine.sampler.arrays import Floats, Ints
from llm_engine.sampler.draw import draw
from llm_engine.sampler.rows import Sampled, SamplerRow, Unsampled
from llm_engine.sampler.scores import score


def sample(logits_SV: torch.Tensor, rows: Sequence[SamplerRow]) -> list[Sampled | Unsampled]:
    """Choose one token per row; the logits are left as they are.

    Shapes: logits (S, V), float32. A row without a finite maximum has no token, and says why.
    Cost: greedy rows are read once; drawn rows see one exponential per token, or none where top_k
    bounds the choice.
    """
    raw_SV: Floats = logits_SV.cpu().numpy()
    adjusted_SV = _adjust(raw_SV, rows)
    token_ids_S = adjusted_SV.argmax(axis=-1)
    largest_S = adjusted_SV[np.arange(len(rows)), token_ids_S]
    # NaN counts as the largest value of its row, so one look finds every kind of damage.
    is_sound_S = np.isfinite(largest_S)
    drawn = [i for i, row in enumerate(rows) if not row.params.is_greedy and is_sound_S[i]]
    if drawn:
        is_all = len(drawn) == len(rows)
        chosen_RV = adjusted_SV if is_all else adjusted_SV[drawn]
        token_ids_S[drawn] = draw(chosen_RV, largest_S[drawn], [rows[i] for i in drawn])
    return _with_scores(raw_SV, token_ids_S, largest_S, rows)


def _adjust(raw_SV: Floats, rows: Sequence[SamplerRow]) -> Floats:
    adjusted = [i for i, row in enumerate(rows) if row.is_adjusted]
    if not adjusted:
        return raw_SV
    logits_SV = raw_SV.copy()
    for i in adjusted:
        rows[i].adjust(logits_SV[i])
    return logits_SV


def _with_scores(
    raw_SV: Floats, token_ids_S: Ints, largest_S: Floats, rows: Sequence[SamplerRow]
) -> list[Sampled | Unsampled]:
    results: list[Sampled | Unsampled] = []
    for i, (token_id, largest) in enumerate(
        zip(token_ids_S.tolist(), largest_S.tolist(), strict=True)
    ):
        params = rows[i].params
        if not math.isfinite(largest):
            is_barred = largest == -np.inf and bool(np.isfinite(raw_SV[i]).any())
            results.append(Unsampled.NOTHING_ALLOWED if is_barred else Unsampled.NOT_FINITE)
        elif not params.logprobs:
            results.append(Sampled(token_id, None, ()))
        else:
            (entry,) = score(raw_SV[i : i + 1], [token_id], params.top_logprobs)
            results.append(Unsampled.NOT_FINITE if entry is None else Sampled(token_id, *entry))
    return results
