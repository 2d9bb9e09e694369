"""SwiGLU in one pass over the fused product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.quantise import FP8_LIMIT, INT8_LIMIT, group_size
from kernels.triton_numerics import cast, round_to_integer

# T rows, I inner width, G groups of a row.


@triton.jit
def swiglu_kernel(
    x_ptr,
    y_ptr,
    scale_ptr,
    x_stride,
    num_columns,
    num_groups,
    clamp,
    gain,
    shift,
    HAS_CLAMP: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    QUANT: tl.constexpr,  # 0 none, 1 fp8 in groups, 2 int8 by row
    LIMIT: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One program for (GROUPS, GROUP) values of a row; int8 holds the whole row as one group."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = column < num_columns
    x_row = x_ptr + row * x_stride
    gate = tl.load(x_row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_row + num_columns + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_CLAMP:
        gate = tl.minimum(gate, clamp)
        up = tl.minimum(tl.maximum(up, -clamp), clamp)
    if HAS_GAIN:
        y = gate / (1.0 + tl.exp(-gain * gate)) * (up + shift)
    else:
        y = gate / (1.0 + tl.exp(-gate)) * up
    if QUANT != 0:
        largest = tl.max(tl.abs(y), axis=1)
        scale = tl.where(largest > 0, largest / LIMIT, 1.0)
        if QUANT == 2:  # a product: a division a value spills where a row is held whole
            y = round_to_integer(tl.clamp(y * (1.0 / scale)[:, None], -LIMIT, LIMIT))
        else:
            y = tl.clamp(y / scale[:, None], -LIMIT, LIMIT)
        tl.store(scale_ptr + row * num_groups + group, scale, mask=group < num_groups)
    tl.store(y_ptr + row * num_columns + column, cast(y, y_ptr.dtype.element_ty), mask=inside)


BLOCK = 1024  # values of a program where nothing asks for the whole row
QUANT_CODES = {"none": 0, "fp8": 1, "int8": 2}
QUANT_DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def tile(width: int, quant: str) -> tuple[int, int]:
    """(GROUPS, GROUP) of a program."""
    if quant == "fp8":
        group = triton.next_power_of_2(max(group_size(quant, width), 1))
        return BLOCK // group, group
    return 1, triton.next_power_of_2(max(width, 1)) if quant == "int8" else BLOCK


def num_warps(width: int, quant: str) -> int:
    """Warps of a program: 8 values a lane, and no more than 32 where a row is held whole."""
    if quant != "int8" or width <= 2048:
        return 4
    return 16 if width > 4096 else 8


def swiglu(
    x_T2I: torch.Tensor,
    *,
    clamp: float | None = None,
    gain: float = 1.0,
    shift: float = 0.0,
    quant: str = "none",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Launch programs over rows and columns. See `kernels.ops.swiglu.swiglu` for the contract."""
    num_rows, width = x_T2I.shape[0], x_T2I.shape[1] // 2
    groups, group = tile(width, quant)
    num_groups = -(-width // group)
    dtype = QUANT_DTYPES.get(quant, x_T2I.dtype)
    y = torch.empty(num_rows, width, dtype=dtype, device=x_T2I.device)
    scale = None
    if quant != "none":
        scale = torch.empty(num_rows, num_groups, dtype=torch.float32, device=x_T2I.device)
    if num_rows == 0 or width == 0:
        return y, scale
    x_T2I = x_T2I if x_T2I.stride(-1) == 1 else x_T2I.contiguous()
    swiglu_kernel[(num_rows, triton.cdiv(num_groups, groups))](
        x_T2I,
        y,
        scale if scale is not None else y,
        x_T2I.stride(0),
        width,
        num_groups,
        0.0 if clamp is None else float(clamp),
        float(gain),
        float(shift),
        HAS_CLAMP=clamp is not None,
        HAS_GAIN=(gain, shift) != (1.0, 0.0),
        QUANT=QUANT_CODES[quant],
        LIMIT=INT8_LIMIT if quant == "int8" else FP8_LIMIT,
        GROUPS=groups,
        GROUP=group,
        num_warps=num_warps(width, quant),
    )
    return y, scale
