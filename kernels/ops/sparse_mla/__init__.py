"""Absorbed latent attention over selected tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.ops.sparse_mla.rows import Rows

if TYPE_CHECKING:
    import torch

__all__ = ["Rows", "sparse_mla"]

PHASES = ("prefill", "decode")


def sparse_mla(
    q_THD: torch.Tensor,
    rows: Rows,
    index_TK: torch.Tensor,
    *,
    scale: float,
    phase: str = "prefill",
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """o[t, h] = Σ_k softmax_k(scale · q[t, h] · row_k) · row_k[:L] over the rows of index[t].

    Shapes: q (T, H, L + R), queries already taken through the key's up-projection; rows of L
    values and R tail (`Rows`; R = 0 without rotation); index (T, K) int32, rows of the pool in any
    order, -1 none. Returns o (T, H, L) in q's dtype and lse (T, H) float32, -inf where a token has
    no row. `phase` "decode" splits the rows of a token over programs and merges the parts.
    Numerics: scores and softmax in float32; rows and weights are rounded to q's dtype before the
    products; error ≤ 2× that of plain torch in the same dtype.
    Cost: each selected row is read once for every 16 or 32 heads; no row is copied.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1 (absorption); DeepSeek-V3.2 (selection).
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.errors import ShapeError
    from kernels.ops.sparse_mla.rows import check_rows
    from kernels.ops.sparse_mla.spec import SPEC
    from kernels.runtime import implementation

    check_shape(q_THD, "T H D", {}, name="q")
    num_tokens, num_heads, width = q_THD.shape
    check_rows(rows, q_THD.dtype, width, name="rows")
    check_shape(index_TK, "T K", {"T": num_tokens}, name="index")
    if phase not in PHASES:
        raise ShapeError(f"phase is {phase!r}; it must be one of {', '.join(PHASES)}")
    sizes = {
        "T": num_tokens,
        "H": num_heads,
        "L": rows.num_values,
        "R": rows.num_tail,
        "K": index_TK.shape[1],
        "page": 1,
    }
    options = {"phase": phase, "cache": rows.format_name}
    run = implementation(
        SPEC, q_THD.device, DTYPE_NAMES[q_THD.dtype], sizes=sizes, options=options, asked=impl
    )
    return run(q_THD, rows, index_TK, scale=scale, phase=phase)
