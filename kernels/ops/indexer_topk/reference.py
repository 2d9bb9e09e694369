"""Index scores and the choice of the best, in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.indexer_topk.keys import Candidates, Keys, key_rows
from kernels.quantise import FP8_LIMIT
from kernels.spec import Case

# T tokens, H heads, D width, S positions, K chosen, N candidate blocks, B positions of a block.

# Bytes of scores of all heads at a time: a long prompt is cut into runs of tokens.
SCORE_BYTES = 1 << 26


def indexer_topk(
    q_THD: torch.Tensor,
    weight_TH: torch.Tensor,
    keys: Keys,
    bound_T: torch.Tensor,
    *,
    k: int,
    scale: float,
    candidates: Candidates | None = None,
    maxima_of: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `kernels.ops.indexer_topk`; `maxima_of` blocks: `candidate_blocks`."""
    num_tokens, num_heads, _ = q_THD.shape
    step = max(1, SCORE_BYTES // max(1, num_heads * keys.num_positions * 8))
    parts = [
        _choose(
            *_scores(q_THD, weight_TH, keys, bound_T[run], scale, candidates, run),
            bound_T[run], k, maxima_of,
        )
        for start in range(0, num_tokens, step)
        for run in (slice(start, min(start + step, num_tokens)),)
    ]  # fmt: skip
    if not parts:
        wide = torch.promote_types(q_THD.dtype, torch.float32)
        return bound_T.new_empty(0, k, dtype=torch.int32), q_THD.new_empty(0, k, dtype=wide)
    return torch.cat([index for index, _ in parts]), torch.cat([score for _, score in parts])


def _scores(
    q_THD: torch.Tensor,
    weight_TH: torch.Tensor,
    keys: Keys,
    bound_T: torch.Tensor,
    scale: float,
    candidates: Candidates | None,
    run: slice,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score and position of every key that a run of tokens may see; -inf for the others."""
    wide = torch.promote_types(q_THD.dtype, torch.float32)
    num_tokens = run.stop - run.start
    if candidates is None:
        position_TS = torch.arange(keys.num_positions, device=bound_T.device)
        position_TS = position_TS.expand(num_tokens, -1)
        is_seen_TS = position_TS < bound_T[:, None]
    else:
        within_B = torch.arange(candidates.block_size, device=bound_T.device)
        blocks_TN1 = candidates.blocks_TN[run].long()[..., None]
        position_TS = (blocks_TN1 * candidates.block_size + within_B).flatten(1)
        is_seen_TS = (position_TS >= 0) & (position_TS < bound_T[:, None])
        position_TS = position_TS.clamp(0, max(keys.num_positions - 1, 0))
    row_TS = key_rows(keys, position_TS, run)
    shared = candidates is None and keys.table_BM is None
    key_TSD = keys.values_PD.to(wide)[None] if shared else keys.values_PD.to(wide)[row_TS]
    products_THS = (q_THD[run].to(wide) @ key_TSD.transpose(1, 2)).relu()
    score_TS = (weight_TH[run].to(wide)[:, None, :] @ products_THS)[:, 0] * scale
    if keys.scales_P is not None:
        score_TS = score_TS * keys.scales_P.to(wide)[row_TS]
    return score_TS.masked_fill(~is_seen_TS, -torch.inf), position_TS


def _choose(
    score_TS: torch.Tensor,
    position_TS: torch.Tensor,
    bound_T: torch.Tensor,
    k: int,
    maxima_of: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best k by falling score, the lowest position first where scores are equal."""
    if maxima_of:
        score_TS = _block_maxima(score_TS, bound_T, maxima_of)
        position_TS = torch.arange(score_TS.shape[1], device=bound_T.device).expand_as(score_TS)
    score_TS, place_TS = score_TS.sort(dim=-1, descending=True, stable=True)
    missing = max(0, k - score_TS.shape[1])
    score_TK = torch.nn.functional.pad(score_TS, (0, missing), value=-torch.inf)[:, :k]
    index_TK = torch.nn.functional.pad(position_TS.gather(1, place_TS), (0, missing))[:, :k]
    index_TK = index_TK.masked_fill(score_TK == -torch.inf, -1)
    if maxima_of:
        order_TK = torch.where(index_TK < 0, 1 << 40, index_TK).argsort(-1)
        index_TK, score_TK = index_TK.gather(1, order_TK), score_TK.gather(1, order_TK)
    return index_TK.int(), score_TK


def _block_maxima(score_TS: torch.Tensor, bound_T: torch.Tensor, block_size: int) -> torch.Tensor:
    """The largest score of each block; the block of the newest visible key counts as infinite."""
    missing = -score_TS.shape[1] % block_size
    padded = torch.nn.functional.pad(score_TS, (0, missing), value=-torch.inf)
    best_TC = padded.unflatten(1, (-1, block_size)).amax(-1)
    newest_T = torch.div(
        bound_T.clamp(max=score_TS.shape[1]) - 1, block_size, rounding_mode="floor"
    )
    block_C = torch.arange(best_TC.shape[1], device=bound_T.device)
    return best_TC.masked_fill(block_C == newest_T[:, None], torch.inf)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments of a case; keys lie in shuffled pages where there are several tokens."""
    sizes, dtype = case.sizes, TORCH_DTYPES[case.dtype]
    num_tokens, heads, width, num_keys = sizes["T"], sizes["H"], sizes["D"], sizes["S"]
    q_THD = torch.randn(num_tokens, heads, 2 * width, generator=generator).to(dtype)[..., :width]
    weight_TH = torch.randn(num_tokens, heads, generator=generator) * heads**-0.5
    key_SD = torch.randn(num_keys, width + 16, generator=generator)[:, :width].to(dtype)
    scales_P = None
    if case.options.get("keys") == "fp8":
        scales_P = key_SD.float().abs().amax(-1) / FP8_LIMIT
        key_SD = (key_SD.float() / scales_P[:, None]).to(torch.float8_e4m3fn)
    keys = Keys(values_PD=key_SD, scales_P=scales_P)
    bound_T = torch.randint(sizes["K"], num_keys + 1, (num_tokens,), generator=generator).int()
    candidates = None
    if case.options.get("candidates") == "yes":
        num_blocks = -(-num_keys // 8)
        blocks_TN = torch.arange(num_blocks).expand(num_tokens, -1).int()
        candidates = Candidates(blocks_TN=blocks_TN)
    options = {"k": sizes["K"], "scale": width**-0.5, "candidates": candidates}
    return (q_THD, weight_TH, keys, bound_T), options
