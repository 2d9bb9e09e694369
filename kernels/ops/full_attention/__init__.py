"""Attention of every query to every key, and the merge of two such results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def full_attention(
    q_SHD: torch.Tensor,
    k_NHD: torch.Tensor,
    v_NHD: torch.Tensor,
    *,
    scale: float | None = None,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """o = softmax(scale · q kᵀ) v and lse = log Σ exp(scale · q kᵀ), for each head.

    Shapes: q (S, H, D), k and v (N, H, D), any lengths, any number of heads, any strides. Returns
    (o, lse): o (S, H, D) in q's dtype, lse (S, H) float32, natural logarithm. Without keys o is 0
    and lse is -inf. `scale` is 1/sqrt(D) unless given, and positive.
    Numerics: scores, softmax and sums in float32, weights rounded to v's dtype for the product, as
    in flash attention; error ≤ 2× that of plain torch in the same dtype. On a CPU the lse of
    16-bit inputs is exact to 1e-4 only.
    Cost: q and o once, k and v once for each tile of queries; the scores are never stored.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Dao 2023, arXiv:2307.08691, algorithm 1.
    """
    from kernels.checks import check_dtype, check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.full_attention.scaling import softmax_scale
    from kernels.ops.full_attention.spec import SPEC
    from kernels.runtime import implementation

    check_shape(q_SHD, "S H D", {}, name="q")
    num_queries, heads, head_dim = q_SHD.shape
    check_shape(k_NHD, "N H D", {"H": heads, "D": head_dim}, name="k")
    sizes = {"S": num_queries, "N": k_NHD.shape[0], "H": heads, "D": head_dim}
    check_shape(v_NHD, "N H D", sizes, name="v")
    for name, x in (("k", k_NHD), ("v", v_NHD)):
        check_dtype(x, (q_SHD.dtype,), name=name)
    run = implementation(
        SPEC, q_SHD.device, DTYPE_NAMES[q_SHD.dtype], sizes=sizes, options={}, asked=impl
    )
    return run(q_SHD, k_NHD, v_NHD, scale=softmax_scale(scale, head_dim))


def merge_lse(
    o1: torch.Tensor, l1: torch.Tensor, o2: torch.Tensor, l2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to two sets of keys from the attention to each: l = log(e^l1 + e^l2).

    o = o1 · e^(l1 - l) + o2 · e^(l2 - l). Commutative; associative up to rounding; a half without
    keys (lse -inf) changes nothing.

    Shapes: o1, o2 (..., D) and l1, l2 (...); returns o (..., D) and l (...).
    Numerics: float32, or float64 when given it; the caller rounds after the last merge.
    Source: Rabe & Staats 2021, arXiv:2112.05682, section 2.
    """
    import torch

    wide = torch.promote_types(l1.dtype, torch.float32)
    l1, l2 = l1.to(wide), l2.to(wide)
    total = torch.logaddexp(l1, l2)
    # Where neither half has keys, both weights must be 0, not exp(-inf + inf).
    finite = total.clamp(min=torch.finfo(wide).min)
    share1, share2 = ((part - finite).exp().unsqueeze(-1) for part in (l1, l2))
    return o1.to(wide) * share1 + o2.to(wide) * share2, total
