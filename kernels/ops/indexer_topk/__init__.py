"""The keys that an indexer finds best for each query, without the matrix of all scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.ops.indexer_topk.keys import Candidates, Keys

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch

__all__ = ["Candidates", "Keys", "candidate_blocks", "indexer_topk"]

# A tile of keys holds whole blocks.
BLOCK_SIZES = (2, 4, 8, 16, 32)


def indexer_topk(
    q_THD: torch.Tensor,
    weight_TH: torch.Tensor,
    keys: Keys,
    bound_T: torch.Tensor,
    *,
    k: int,
    scale: float,
    candidates: Candidates | None = None,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Top k over s < bound[t] of I[t, s] = scale · Σ_h weight[t, h] · ReLU(q[t, h] · key[s]).

    Shapes: q (T, H, D); weight (T, H), of any sign; keys, a pool (`Keys`); bound (T) int32, how
    many keys a query may see; `candidates` (from `candidate_blocks`) leaves it fewer. Returns
    index (T, K) int32 by falling score, the lowest first where scores are equal, -1 beyond; score
    (T, K) float32, -inf beyond.
    Numerics: products of q's dtype summed in float32, as torch does; e4m3 keys are exact in it.
    Cost: each key is read once for every 128 rows (tokens · heads); scores exist for a bounded
    number of tokens and keys at a time, 32 MiB whatever T and S.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: DeepSeek-V3.2, lightning indexer; radix selection: Alabi et al. 2012, JEA 17.
    """
    run = _implementation(q_THD, weight_TH, keys, bound_T, k, candidates, impl)
    return run(q_THD, weight_TH, keys, bound_T, k=k, scale=scale, candidates=candidates)


def candidate_blocks(
    q_THD: torch.Tensor,
    weight_TH: torch.Tensor,
    keys: Keys,
    bound_T: torch.Tensor,
    *,
    num_blocks: int,
    scale: float,
    block_size: int = 8,
    impl: str = "auto",
) -> Candidates:
    """The `num_blocks` blocks with the largest score in them, and always the newest one.

    Shapes: as `indexer_topk`; `block_size` divides 32.
    Raises: ShapeError for another block size; else as `indexer_topk`.
    Source: DeepSeek-V4.1, candidate blocks (2048 blocks of 8 entries).
    """
    from kernels.errors import ShapeError

    if block_size not in BLOCK_SIZES:
        raise ShapeError(f"block_size is {block_size}; it must be one of {BLOCK_SIZES}")
    run = _implementation(q_THD, weight_TH, keys, bound_T, num_blocks, None, impl)
    blocks_TN, _ = run(
        q_THD, weight_TH, keys, bound_T, k=num_blocks, scale=scale, maxima_of=block_size
    )
    return Candidates(blocks_TN=blocks_TN, block_size=block_size)


def _implementation(
    q_THD: torch.Tensor,
    weight_TH: torch.Tensor,
    keys: Keys,
    bound_T: torch.Tensor,
    k: int,
    candidates: Candidates | None,
    impl: str,
) -> Callable[..., Any]:
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.indexer_topk.keys import check_keys
    from kernels.ops.indexer_topk.spec import SPEC
    from kernels.runtime import implementation

    check_shape(q_THD, "T H D", {}, name="q")
    num_tokens, num_heads, width = q_THD.shape
    check_shape(weight_TH, "T H", {"T": num_tokens, "H": num_heads}, name="weight")
    check_shape(bound_T, "T", {"T": num_tokens}, name="bound")
    check_keys(keys, q_THD.dtype, width, num_tokens)
    if candidates is not None:
        check_shape(candidates.blocks_TN, "T N", {"T": num_tokens}, name="candidates")
    sizes = {"T": num_tokens, "H": num_heads, "D": width, "S": keys.num_positions, "K": k}
    restricted = "none" if candidates is None else "yes"
    options = {"keys": keys.format_name, "candidates": restricted}
    return implementation(
        SPEC, q_THD.device, DTYPE_NAMES[q_THD.dtype], sizes=sizes, options=options, asked=impl
    )
