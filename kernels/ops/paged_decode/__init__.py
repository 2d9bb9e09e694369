"""Attention of one new token a sequence over a paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def paged_decode(
    q_BHD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    lengths_B: torch.Tensor,
    table_BM: torch.Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    sink_H: torch.Tensor | None = None,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """o_b = Σ_j e^(s_bj) v_j / (e^sink + Σ_j e^(s_bj)), s_bj = scale · q_b·k_j, j < length_b.

    With a window, the last `window` keys alone. Equal to the last row of a prefill, and with the
    same meaning of lse and sink: see `kernels.ops.paged_prefill.paged_prefill`.

    Shapes: q (B, H, D), one row a sequence; cache (P, Z, 2, K, D); lengths (B) int32, tokens in
    the cache with the new one, at least 1; table (B, M) int32; sink (H). Returns (o, lse): o
    (B, H, D) in q's dtype, lse (B, H) float32, natural logarithm.
    Numerics: splits of the keys are merged in float32; else as prefill.
    Cost: keys and values once, whatever the number of query heads; nothing is read back, so the
    call can stand in a graph.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (splits and merge).
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.full_attention.scaling import softmax_scale
    from kernels.ops.paged_decode.spec import SPEC
    from kernels.ops.paged_prefill.arguments import check_paged, paged_options
    from kernels.runtime import implementation

    sizes = check_paged(q_BHD, cache_PZ2KD, lengths_B, table_BM, window=window, sink_H=sink_H)
    check_shape(lengths_B, "B", {"B": q_BHD.shape[0]}, name="lengths")
    run = implementation(
        SPEC,
        q_BHD.device,
        DTYPE_NAMES[q_BHD.dtype],
        sizes={"B": q_BHD.shape[0]} | sizes,
        options=paged_options(window, sink_H),
        asked=impl,
    )
    return run(
        q_BHD,
        cache_PZ2KD,
        lengths_B,
        table_BM,
        scale=softmax_scale(scale, q_BHD.shape[-1]),
        window=window,
        sink_H=sink_H,
    )
