"""The sampler on a CPU: borders from the likeliest tokens alone, the draw over all rows together.

A row whose border lies beyond the tokens looked at is sorted whole.
"""

from __future__ import annotations

import torch

from kernels.ops.sampler.reference import (
    BLOCK_TOKENS,
    NEVER,
    adjust,
    draw,
    draw_from_blocks,
    finish,
    lowest_kept,
    lowest_of_sorted,
)
from kernels.ops.sampler.rows import Draws, Penalties

# B rows, V vocabulary, N rows that draw, K candidates.

CANDIDATES = 256  # likeliest tokens looked at where no top-k asks for more


def sampler(
    logits_BV: torch.Tensor,
    draws: Draws,
    penalties: Penalties | None = None,
    bias_BV: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.sampler.sampler`."""
    wide_BV = logits_BV.float()
    adjusted_BV = adjust(wide_BV, penalties, bias_BV)
    drawn_N = (draws.temperature > 0).nonzero().squeeze(1)
    if len(drawn_N) == len(wide_BV):
        largest_B1 = adjusted_BV.amax(-1, keepdim=True)
        return finish(wide_BV, largest_B1, _draw(adjusted_BV - largest_B1, draws))
    token_B1 = adjusted_BV.argmax(-1, keepdim=True)
    largest_B1, tokens_B = adjusted_BV.gather(1, token_B1), token_B1.squeeze(1)
    if len(drawn_N):
        lowered_NV = adjusted_BV[drawn_N] - largest_B1[drawn_N]
        tokens_B[drawn_N] = _draw(lowered_NV, draws.take(drawn_N))
    return finish(wide_BV, largest_B1, tokens_B)


def _draw(lowered_NV: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Tokens of rows whose largest logit lies at 0; `lowered` is overwritten."""
    scaled_NV = lowered_NV.div_(draws.temperature.unsqueeze(1))
    if not draws.has_top:
        return draw(scaled_NV, None, draws)
    num_candidates = _num_candidates(draws, scaled_NV.shape[1])
    sorted_NK, ids_NK = scaled_NV.topk(num_candidates)
    total_N1 = None
    if draws.top_p is not None and (draws.top_k is None or bool((draws.top_k <= 0).any())):
        total_N1 = scaled_NV.exp().sum(-1, keepdim=True)
    lowest_N1 = lowest_of_sorted(sorted_NK, draws, total_N1)
    if num_candidates < scaled_NV.shape[1] and bool((sorted_NK[:, -1:] >= lowest_N1).any()):
        return draw(scaled_NV, _sorted_whole(scaled_NV, sorted_NK, lowest_N1, draws), draws)
    mass_NK = sorted_NK.exp().masked_fill_(sorted_NK < lowest_N1, 0.0)
    mass_NG = mass_NK.new_zeros(len(mass_NK), -(-scaled_NV.shape[1] // BLOCK_TOKENS))
    mass_NG.scatter_add_(1, ids_NK // BLOCK_TOKENS, mass_NK)
    return draw_from_blocks(mass_NG, scaled_NV, lowest_N1, draws)


def _sorted_whole(
    scaled_NV: torch.Tensor, sorted_NK: torch.Tensor, lowest_N1: torch.Tensor, draws: Draws
) -> torch.Tensor:
    """Borders, those at the last candidate or below it found anew among all tokens of the row."""
    is_open_N1 = (sorted_NK[:, -1:] >= lowest_N1) & (lowest_N1 > NEVER)
    open_rows = is_open_N1.squeeze(1).nonzero().squeeze(1)
    lowest = lowest_kept(scaled_NV[open_rows], draws.take(open_rows))
    return lowest_N1 if lowest is None else lowest_N1.index_copy(0, open_rows, lowest)


def _num_candidates(draws: Draws, vocabulary: int) -> int:
    if draws.top_k is None:
        return min(CANDIDATES, vocabulary)
    least, most = (int(k) for k in draws.top_k.aminmax())
    return min(most + 1 if least > 0 else max(CANDIDATES, most + 1), vocabulary)
