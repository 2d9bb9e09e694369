"""Attention of many heads to shared rows: a window of recent ones and those an indexer chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.ops.sparse_mla.rows import Rows, Selection

if TYPE_CHECKING:
    import torch

__all__ = ["Rows", "Selection", "sparse_shared_kv"]

PHASES = ("prefill", "decode")


def sparse_shared_kv(
    q_THD: torch.Tensor,
    window: Selection,
    chosen: Selection,
    sink_H: torch.Tensor | None = None,
    *,
    scale: float,
    phase: str = "prefill",
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """o[t, h] = Σ_r e^(scale · q·r) · r / (e^sink[h] + Σ_r e^(scale · q·r)), r ∈ window ∪ chosen.

    A row is key and value of every head; the sink takes its share and has no value.

    Shapes: q (T, H, D); window and chosen, W and K rows a token (`Selection`) of pools D wide that
    have the same format; sink (H) or None; -inf is none. Returns o (T, H, D) in q's dtype and lse
    (T, H) float32, the log of the denominator with the sink, -inf where it is zero. Parts of a
    token's rows merge by their lse; the sink belongs to one of them. `phase` "decode" splits rows
    over programs.
    Numerics: scores and softmax in float32; rows and weights are rounded to q's dtype before the
    products; error ≤ 2× that of plain torch in the same dtype.
    Cost: each row is read once for every 16 or 32 heads; no row is copied.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: DeepSeek-V4 (shared rows of 512, sink in the denominator); online softmax: Milakov &
    Gimelshein 2018, arXiv:1805.02867.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.errors import ShapeError
    from kernels.ops.sparse_mla.rows import check_rows
    from kernels.ops.sparse_shared_kv.spec import SPEC
    from kernels.runtime import implementation

    check_shape(q_THD, "T H D", {}, name="q")
    num_tokens, num_heads, width = q_THD.shape
    for selection, name in ((window, "window"), (chosen, "chosen")):
        check_rows(selection.rows, q_THD.dtype, width, name=name)
        check_shape(selection.index_TK, "T K", {"T": num_tokens}, name=f"{name}.index")
    if window.rows.layout != chosen.rows.layout:
        raise ShapeError(
            f"rows of the window are {window.rows.layout}, chosen ones {chosen.rows.layout}"
        )
    if sink_H is not None:
        check_shape(sink_H, "H", {"H": num_heads}, name="sink")
    if phase not in PHASES:
        raise ShapeError(f"phase is {phase!r}; it must be one of {', '.join(PHASES)}")
    sizes = {"T": num_tokens, "H": num_heads, "D": width, "page": 1}
    sizes |= {"W": window.index_TK.shape[1], "K": chosen.index_TK.shape[1]}
    sink = "yes" if sink_H is not None else "none"
    options = {"phase": phase, "rows": chosen.rows.format_name, "sink": sink}
    run = implementation(
        SPEC, q_THD.device, DTYPE_NAMES[q_THD.dtype], sizes=sizes, options=options, asked=impl
    )
    return run(q_THD, window, chosen, sink_H, scale=scale, phase=phase)
