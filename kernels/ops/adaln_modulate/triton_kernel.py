"""Gated residual, norm, scale and shift in one pass over each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.adaln_modulate.modulation import Modulation
from kernels.triton_numerics import cast

# T tokens, C channels, B rows of modulation.


@triton.jit
def adaln_modulate_kernel(
    x_ptr,
    branch_ptr,
    scale_ptr,
    shift_ptr,
    gate_ptr,
    rows_ptr,
    y_ptr,
    summed_ptr,
    x_stride,
    branch_stride,
    scale_stride,
    shift_stride,
    gate_stride,
    num_columns,
    tokens_per_row,
    eps,
    NORM: tl.constexpr,  # 0 none, 1 rms, 2 layer
    HAS_BRANCH: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    WRITE_Y: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a token; the whole row lies in registers."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < num_columns
    row = tl.load(rows_ptr + token).to(tl.int64) if HAS_ROWS else token // tokens_per_row
    x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0)
    if HAS_BRANCH:
        added = tl.load(branch_ptr + token * branch_stride + column, mask=inside, other=0.0)
        added = added.to(tl.float32)
        if HAS_GATE:
            gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside, other=0.0)
            added *= gate.to(tl.float32)
        x = cast(x.to(tl.float32) + added, summed_ptr.dtype.element_ty)
        tl.store(summed_ptr + token * num_columns + column, x, mask=inside)
    if WRITE_Y:
        y = x.to(tl.float32)
        if NORM == 2:
            y = tl.where(inside, y - tl.sum(y, axis=0) / num_columns, 0.0)
        if NORM != 0:
            y *= tl.rsqrt(tl.sum(y * y, axis=0) / num_columns + eps)
        if HAS_SCALE:
            scale = tl.load(scale_ptr + row * scale_stride + column, mask=inside, other=0.0)
            shift = tl.load(shift_ptr + row * shift_stride + column, mask=inside, other=0.0)
            y = y * (1.0 + scale.to(tl.float32)) + shift.to(tl.float32)
        y = cast(y, y_ptr.dtype.element_ty)
        tl.store(y_ptr + token * num_columns + column, y, mask=inside)


NORM_CODES = {"none": 0, "rms": 1, "layer": 2}


def num_warps(width: int) -> int:
    """Warps of a program: at most 16 values a lane up to 8192 channels."""
    if width > 4096:
        return 16
    return 8 if width > 1024 else 4


def adaln_modulate(
    x_TC: torch.Tensor,
    modulation: Modulation,
    branch_TC: torch.Tensor | None = None,
    *,
    norm: str,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Launch one program a token. See `kernels.ops.adaln_modulate.adaln_modulate`."""
    num_tokens, width = x_TC.shape
    has_scale = modulation.scale is not None
    writes_y = branch_TC is None or has_scale or norm != "none"
    summed = None if branch_TC is None else torch.empty_like(x_TC, memory_format=_DENSE)
    y = torch.empty_like(x_TC, memory_format=_DENSE) if writes_y or summed is None else summed
    if num_tokens == 0 or width == 0:
        return y, summed
    x, branch = _row_major(x_TC, x_TC), _row_major(branch_TC, x_TC)
    scale, shift = _row_major(modulation.scale, x), _row_major(modulation.shift, x)
    gate = _row_major(modulation.gate, x)
    rows = x if modulation.rows is None else modulation.rows.contiguous()
    adaln_modulate_kernel[(num_tokens,)](
        x,
        branch,
        scale,
        shift,
        gate,
        rows,
        y,
        y if summed is None else summed,
        x.stride(0),
        branch.stride(0),
        scale.stride(0),
        shift.stride(0),
        gate.stride(0),
        width,
        max(num_tokens // modulation.num_rows, 1),
        eps,
        NORM=NORM_CODES[norm],
        HAS_BRANCH=branch_TC is not None,
        HAS_GATE=modulation.gate is not None,
        HAS_SCALE=has_scale,
        HAS_ROWS=modulation.rows is not None,
        WRITE_Y=writes_y,
        BLOCK=triton.next_power_of_2(width),
        num_warps=num_warps(width),
    )
    return y, summed


_DENSE = torch.contiguous_format


def _row_major(tensor: torch.Tensor | None, otherwise: torch.Tensor) -> torch.Tensor:
    """`tensor` with neighbouring channels side by side; a stand-in where it is missing."""
    tensor = otherwise if tensor is None else tensor
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
