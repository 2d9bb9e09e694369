"""RMSNorm with residual and quantisation in one pass over each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.quantise import FP8_LIMIT, INT8_LIMIT, group_size
from kernels.triton_numerics import cast, round_to_integer

# T rows, D width, G groups of a row.


@triton.jit
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    summed_ptr,
    scale_ptr,
    x_stride,
    residual_stride,
    num_columns,
    num_groups,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    QUANT: tl.constexpr,  # 0 none, 1 fp8 in groups, 2 int8 by row
    LIMIT: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One program a row, held as (GROUPS, GROUP) so that a group's maximum is one reduction."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)[:, None]
    column = group * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < num_columns
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * residual_stride + column, mask=inside, other=0.0)
        x = cast(x.to(tl.float32) + residual.to(tl.float32), summed_ptr.dtype.element_ty)
        tl.store(summed_ptr + row * num_columns + column, x, mask=inside)
    wide = x.to(tl.float32)
    mean_square = tl.sum(tl.sum(wide * wide, axis=1), axis=0) / num_columns
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    y = wide * tl.rsqrt(mean_square + eps) * weight
    if QUANT != 0:
        largest = tl.max(tl.abs(y), axis=1)
        scale = tl.where(largest > 0, largest / LIMIT, 1.0)
        y = tl.clamp(y / scale[:, None], -LIMIT, LIMIT)
        if QUANT == 2:
            y = round_to_integer(y)
        which = tl.arange(0, GROUPS)
        tl.store(scale_ptr + row * num_groups + which, scale, mask=which < num_groups)
    tl.store(y_ptr + row * num_columns + column, cast(y, y_ptr.dtype.element_ty), mask=inside)


def num_warps(width: int, quant: str) -> int:
    """Warps of a program; int8 holds the whole row twice, and spills on sm_120 with fewer."""
    if quant == "int8" and width > 2048:
        return 16
    return 8 if width > 2048 else 4


QUANT_CODES = {"none": 0, "fp8": 1, "int8": 2}
QUANT_DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def rms_norm(
    x_TD: torch.Tensor,
    weight_D: torch.Tensor,
    residual_TD: torch.Tensor | None = None,
    *,
    eps: float,
    quant: str = "none",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Launch one program a row. See `kernels.ops.rms_norm.rms_norm` for the contract."""
    num_rows, width = x_TD.shape
    group = group_size(quant, width) if quant == "fp8" else triton.next_power_of_2(max(width, 1))
    num_groups = -(-width // group) if quant == "fp8" else 1
    y = torch.empty(num_rows, width, dtype=QUANT_DTYPES.get(quant, x_TD.dtype), device=x_TD.device)
    summed = torch.empty_like(y, dtype=x_TD.dtype) if residual_TD is not None else None
    scale = None
    if quant != "none":
        scale = torch.empty(num_rows, num_groups, dtype=torch.float32, device=x_TD.device)
    if num_rows == 0 or width == 0:
        return y, summed, scale
    x_TD = x_TD if x_TD.stride(-1) == 1 else x_TD.contiguous()
    residual = x_TD if residual_TD is None else residual_TD
    residual = residual if residual.stride(-1) == 1 else residual.contiguous()
    rms_norm_kernel[(num_rows,)](
        x_TD,
        residual,
        weight_D.contiguous(),
        y,
        summed if summed is not None else y,
        scale if scale is not None else y,
        x_TD.stride(0),
        residual.stride(0),
        width,
        num_groups,
        eps,
        HAS_RESIDUAL=residual_TD is not None,
        QUANT=QUANT_CODES[quant],
        LIMIT=INT8_LIMIT if quant == "int8" else FP8_LIMIT,
        GROUPS=triton.next_power_of_2(num_groups),
        GROUP=triton.next_power_of_2(group),
        num_warps=num_warps(width, quant),
    )
    return y, summed, scale
