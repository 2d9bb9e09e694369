"""What prefill and decode over pages check of their arguments alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.checks import check_dtype, check_shape
from kernels.errors import ShapeError

if TYPE_CHECKING:
    import torch


def check_paged(
    q_THD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    lengths_B: torch.Tensor,
    table_BM: torch.Tensor,
    *,
    window: int | None,
    sink_H: torch.Tensor | None,
) -> dict[str, int]:
    """The sizes H, K, D, page and S, the longest context that the table has room for.

    Raises:
        ShapeError: names the argument, what it is and what it must be.
    """
    check_shape(q_THD, "T H D", {}, name="q")
    heads, head_dim = q_THD.shape[1:]
    check_shape(cache_PZ2KD, "P Z 2 K D", {"2": 2, "D": head_dim}, name="cache")
    check_dtype(cache_PZ2KD, (q_THD.dtype,), name="cache")
    if cache_PZ2KD.stride(-1) != 1:
        raise ShapeError(f"cache has strides {cache_PZ2KD.stride()}; the last must be 1")
    page, _, kv_heads = cache_PZ2KD.shape[1:4]
    if heads % kv_heads:
        raise ShapeError(f"{heads} query heads are no multiple of {kv_heads} key/value heads")
    check_shape(lengths_B, "B", {}, name="lengths")
    check_shape(table_BM, "B M", {"B": lengths_B.shape[0]}, name="table")
    if sink_H is not None:
        check_shape(sink_H, "H", {"H": heads}, name="sink")
    if window is not None and window < 1:
        raise ShapeError(f"window is {window}; a row sees itself at least, so it must be 1 or more")
    capacity = table_BM.shape[1] * page
    return {"S": capacity, "H": heads, "K": kv_heads, "D": head_dim, "page": page}


def paged_options(window: int | None, sink_H: torch.Tensor | None) -> dict[str, str]:
    """The options of a case."""
    return {
        "window": "none" if window is None else "yes",
        "sink": "none" if sink_H is None else "yes",
    }
