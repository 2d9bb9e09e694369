"""Rotary embedding with the norm before it and the insertion into the paged cache after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.ops.rotary_insert.arguments import HeadNorm, Insertion, Rotation

if TYPE_CHECKING:
    import torch

__all__ = ["HeadNorm", "Insertion", "Rotation", "rotary_insert"]


def rotary_insert(
    q_THD: torch.Tensor,
    k_TKD: torch.Tensor | None,
    v_TKD: torch.Tensor | None = None,
    cache_PZSKD: torch.Tensor | None = None,
    *,
    rotation: Rotation,
    norm: HeadNorm | None = None,
    insertion: Insertion | None = None,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """(a, b) → (a·cos - b·sin, b·cos + a·sin) for every pair of the turning dimensions.

    Queries and keys are normalised first where `norm` has a weight: x / sqrt(mean(x²) + eps) · w.
    With a cache, key and value of token t go to row `slots[t]` of its pages, in place.

    Shapes: q (T, H, D); k, v (T, K, D), views of one fused product allowed; cache (P, Z, 2, K, D):
    pages, rows of a page, key and value; (P, Z, 1, K, D) without v, for rows that serve as both.
    Returns (q, k, cache): q (T, H, D) contiguous; k (T, K, D), or None where the cache took it;
    the cache given.
    Numerics: float32, rounded once; error ≤ 2× that of plain torch in the same dtype.
    Cost: q, k and v are read once, q written once, one row of the cache a token.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.rotary_insert.case import case_of
    from kernels.ops.rotary_insert.spec import SPEC
    from kernels.runtime import implementation

    sizes, options = case_of(q_THD, k_TKD, v_TKD, cache_PZSKD, rotation, norm, insertion)
    run = implementation(
        SPEC, q_THD.device, DTYPE_NAMES[q_THD.dtype], sizes=sizes, options=options, asked=impl
    )
    return run(q_THD, k_TKD, v_TKD, cache_PZSKD, rotation=rotation, norm=norm, insertion=insertion)
