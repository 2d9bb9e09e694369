"""Causal attention of the new tokens of many sequences over a paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def paged_prefill(  # noqa: PLR0913 - four tensors describe a batch of sequences
    q_THD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    lengths_B: torch.Tensor,
    table_BM: torch.Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    sink_H: torch.Tensor | None = None,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """o_i = Σ_j e^(s_ij) v_j / (e^sink + Σ_j e^(s_ij)), s_ij = scale · q_i·k_j, j ≤ i.

    With a window, i - window < j ≤ i. lse_i = log of the denominator, the sink's share included:
    of the parts of a merge, one alone takes the sink. Query head h reads key/value head h // (H/K).

    Shapes: q (T, H, D), all sequences' new tokens in a row; cache (P, Z, 2, K, D), pages of Z
    slots, keys before values, the new tokens stored already; cu_seqlens_q (B+1) int32, where each
    sequence begins in q and T at last; lengths (B) int32, tokens in the cache with the new ones;
    table (B, M) int32, pages of each sequence in order, whose entries past its end are never read;
    sink (H). Returns (o, lse): o (T, H, D) in q's dtype, lse (T, H) float32, natural logarithm.
    Slots past a sequence's end must hold finite numbers. `scale` is 1/sqrt(D) unless given.
    Numerics: as `kernels.ops.full_attention.full_attention`.
    Cost: q and o once; a sequence's keys and values once for each tile of its queries.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Dao 2023, arXiv:2307.08691; Kwon et al. 2023, arXiv:2309.06180, section 4.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.full_attention.scaling import softmax_scale
    from kernels.ops.paged_prefill.arguments import check_paged, paged_options
    from kernels.ops.paged_prefill.spec import SPEC
    from kernels.runtime import implementation

    sizes = check_paged(q_THD, cache_PZ2KD, lengths_B, table_BM, window=window, sink_H=sink_H)
    check_shape(cu_seqlens_q, "B+1", {"B+1": lengths_B.shape[0] + 1}, name="cu_seqlens_q")
    run = implementation(
        SPEC,
        q_THD.device,
        DTYPE_NAMES[q_THD.dtype],
        sizes={"T": q_THD.shape[0]} | sizes,
        options=paged_options(window, sink_H),
        asked=impl,
    )
    return run(
        q_THD,
        cache_PZ2KD,
        cu_seqlens_q,
        lengths_B,
        table_BM,
        scale=softmax_scale(scale, q_THD.shape[-1]),
        window=window,
        sink_H=sink_H,
    )
