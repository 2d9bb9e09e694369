"""Adaptive layer norm on a CPU: tokens of one table row share one fused call.

Scale and shift become weight and bias of torch's layer norm, so norm and modulation are one pass;
the gated residual is one `addcmul`. Tokens that change their table row too often to be grouped
go through plain torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from kernels.ops.adaln_modulate import reference
from kernels.ops.adaln_modulate.modulation import Modulation

# T tokens, C channels.

MIN_RUN = 32  # mean length of a run of tokens below which gathering is faster
BLOCK = 1 << 18  # values of a block whose float32 copies stay in the cache


def adaln_modulate(
    x_TC: torch.Tensor,
    modulation: Modulation,
    branch_TC: torch.Tensor | None = None,
    *,
    norm: str,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.ops.adaln_modulate.adaln_modulate`."""
    runs = _runs(modulation, x_TC.shape[0])
    if len(runs) > 1 and len(runs) * MIN_RUN > x_TC.shape[0]:
        return reference.adaln_modulate(x_TC, modulation, branch_TC, norm=norm, eps=eps)
    parts = [_run(x_TC, modulation, branch_TC, run, norm, eps) for run in runs]
    if not parts:
        return torch.empty_like(x_TC), None if branch_TC is None else torch.empty_like(x_TC)
    if len(parts) == 1:
        return parts[0]
    y_TC = torch.cat([y for y, _ in parts])
    sums = [summed for _, summed in parts if summed is not None]
    return y_TC, torch.cat(sums) if sums else None


def _runs(modulation: Modulation, num_tokens: int) -> list[tuple[int, int, int]]:
    """(first token, end, table row) of each run of tokens with the same row."""
    if modulation.rows is None:
        length = num_tokens // modulation.num_rows
        rows, counts = list(range(modulation.num_rows)), [length] * modulation.num_rows
    else:
        unique, lengths = torch.unique_consecutive(modulation.rows, return_counts=True)
        rows, counts = unique.tolist(), lengths.tolist()
    runs: list[tuple[int, int, int]] = []
    start = 0
    for row, count in zip(rows, counts, strict=True):
        if count:
            runs.append((start, start + count, row))
        start += count
    return runs


def _run(
    x_TC: torch.Tensor,
    modulation: Modulation,
    branch_TC: torch.Tensor | None,
    run: tuple[int, int, int],
    norm: str,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    start, end, row = run
    x_TC = x_TC[start:end]
    summed = None
    if branch_TC is not None:
        added_TC = branch_TC[start:end]
        gate = modulation.gate
        summed = x_TC + added_TC if gate is None else torch.addcmul(x_TC, gate[row], added_TC)
        summed = x_TC = summed.to(x_TC.dtype)
    if modulation.scale is None or modulation.shift is None:
        factor_C, shift_C = None, None
    else:
        factor_C, shift_C = 1 + modulation.scale[row].float(), modulation.shift[row].float()
    if norm == "layer":
        return F.layer_norm(x_TC, (x_TC.shape[1],), factor_C, shift_C, eps), summed
    if norm == "none" and (factor_C is None or shift_C is None):
        return x_TC, summed
    blocks = x_TC.split(max(1, BLOCK // max(x_TC.shape[1], 1)))
    y_TC = [_scaled(block, factor_C, shift_C, norm, eps) for block in blocks]
    return y_TC[0] if len(y_TC) == 1 else torch.cat(y_TC), summed


def _scaled(
    x_TC: torch.Tensor,
    factor_C: torch.Tensor | None,
    shift_C: torch.Tensor | None,
    norm: str,
    eps: float,
) -> torch.Tensor:
    """RMS norm or none, then scale and shift, in float32 while the block is in the cache."""
    wide_TC = x_TC.float()
    if norm == "rms":
        length_T1 = torch.linalg.vector_norm(wide_TC, dim=-1, keepdim=True)
        wide_TC = wide_TC * length_T1.square_().div_(x_TC.shape[1]).add_(eps).rsqrt_()
    if factor_C is not None and shift_C is not None:
        wide_TC = torch.addcmul(shift_C, wide_TC, factor_C)
    return wide_TC.to(x_TC.dtype)
