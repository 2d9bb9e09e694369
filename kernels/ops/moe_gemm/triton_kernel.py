"""Grouped products over tokens sorted by expert, weights decoded in the kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.ops.block_fp8_gemm.formats import FORMATS
from kernels.ops.block_fp8_gemm.formats.reference import is_e8m0
from kernels.ops.block_fp8_gemm.formats.triton_kernel import decode_scale, load_weight
from kernels.ops.block_fp8_gemm.tiles import Tile, matrix_unit
from kernels.ops.moe_gemm.experts import ExpertWeights
from kernels.ops.moe_gemm.tiles import fitted, phase_of, tile_for
from kernels.ops.moe_router.sorting import Sorting, sort_tokens
from kernels.runtime import device_traits
from kernels.triton_numerics import cast, dot

# T tokens, k choices, P padded rows, D and I widths. A pair is token · k + choice.

SUM_COLUMNS = 1024


@triton.jit
def scaled_dot(x, weight, acc, scale_at, FORMAT: tl.constexpr, IS_UNIFORM: tl.constexpr):
    """acc + x · weight; with e4m3 weights the step's sum is scaled by its blocks first."""
    if FORMAT == 1:
        partial = dot(x, weight, tl.zeros_like(acc))
        scale = decode_scale(tl.load(scale_at))
        return acc + partial * (scale if IS_UNIFORM else scale[None, :])
    else:
        return dot(x, weight, acc)


@triton.jit
def gated(gate, up, clamp, gain, shift, HAS_CLAMP: tl.constexpr, HAS_GAIN: tl.constexpr):
    """The activation of `kernels.ops.swiglu`."""
    if HAS_CLAMP:
        gate = tl.minimum(gate, clamp)
        up = tl.minimum(tl.maximum(up, -clamp), clamp)
    if HAS_GAIN:
        return gate / (1.0 + tl.exp(-gain * gate)) * (up + shift)
    else:
        return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def grouped_gemm_kernel(
    x_ptr,
    order_ptr,
    expert_ptr,
    route_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    y_ptr,
    num_pairs,
    pairs_per_row,
    num_columns,
    depth,
    x_stride,
    expert_stride,
    scale_stride,
    clamp,
    gain,
    shift,
    IS_GATED: tl.constexpr,  # gate and up, SwiGLU; else the result is weighed by its route
    HAS_CLAMP: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    FORMAT: tl.constexpr,  # of FORMATS: 0 as x, 1 e4m3 blocks, 2 mxfp4
    BLOCK: tl.constexpr,
    IS_UNIFORM: tl.constexpr,  # the columns of a tile lie in one block
    IS_ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program a block of one expert's rows and a tile of columns; columns run fastest."""
    num_n = tl.cdiv(num_columns, BLOCK_N)
    block, tile_n = tl.program_id(0) // num_n, tl.program_id(0) % num_n
    expert = tl.load(expert_ptr + block).to(tl.int64)
    if expert < 0:
        return
    pair = tl.load(order_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    is_pair = pair < num_pairs
    row = tl.where(is_pair, pair, 0) // pairs_per_row
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    column = n % num_columns
    weight_ptr += expert * expert_stride
    scale_ptr += expert * scale_stride
    num_blocks = tl.cdiv(depth, BLOCK)
    up = column + num_columns
    if IS_UNIFORM:
        scale_row, up_row = tile_n * BLOCK_N // BLOCK, (tile_n * BLOCK_N + num_columns) // BLOCK
    else:
        scale_row, up_row = column // BLOCK, up // BLOCK
    x_row = x_ptr + row.to(tl.int64)[:, None] * x_stride
    dtype: tl.constexpr = x_ptr.dtype.element_ty

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    acc_up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if HAS_BIAS and IS_GATED:  # first: after two sums they would take registers that are full then
        bias = bias_ptr + expert * 2 * num_columns
        acc += tl.load(bias + column).to(tl.float32)[None, :]
        acc_up += tl.load(bias + up).to(tl.float32)[None, :]
    for k0 in range(0, depth, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        if IS_ALIGNED:
            x = tl.load(tl.multiple_of(x_row + k[None, :], (16, 16)))
        else:
            x = tl.load(x_row + k[None, :], mask=k[None, :] < depth, other=0.0)
        weight = load_weight(
            weight_ptr, scale_ptr, column, k0, depth, dtype, FORMAT, IS_ALIGNED, BLOCK_N, BLOCK_K
        )
        scale_at = scale_ptr + scale_row * num_blocks + k0 // BLOCK
        acc = scaled_dot(x, weight, acc, scale_at, FORMAT, IS_UNIFORM)
        if IS_GATED:
            weight = load_weight(
                weight_ptr, scale_ptr, up, k0, depth, dtype, FORMAT, IS_ALIGNED, BLOCK_N, BLOCK_K
            )
            scale_at = scale_ptr + up_row * num_blocks + k0 // BLOCK
            acc_up = scaled_dot(x, weight, acc_up, scale_at, FORMAT, IS_UNIFORM)

    if IS_GATED:
        result = gated(acc, acc_up, clamp, gain, shift, HAS_CLAMP, HAS_GAIN)
    else:
        if HAS_BIAS:
            acc += tl.load(bias_ptr + expert * num_columns + column).to(tl.float32)[None, :]
        result = acc * tl.load(route_ptr + pair, mask=is_pair, other=0.0)[:, None]
    y = y_ptr + pair.to(tl.int64)[:, None] * num_columns + n[None, :]
    fits = is_pair[:, None] & (n[None, :] < num_columns)
    tl.store(y, cast(result, y_ptr.dtype.element_ty), mask=fits)


@triton.jit
def combine_kernel(pairs_ptr, y_ptr, width, K: tl.constexpr, BLOCK: tl.constexpr):
    """y[t] = the sum of the rows of t's choices, in their order."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(K):
        at = pairs_ptr + (token * K + choice) * width + column
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + token * width + column, cast(total, y_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Bounds and gain of the activation; see `kernels.ops.swiglu`."""

    clamp: float | None = None
    gain: float = 1.0
    shift: float = 0.0


PLAIN_GATE = Gate()


def _grouped(
    x_RD: torch.Tensor,
    sorting: Sorting,
    route_P: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    bias_EN: torch.Tensor | None,
    *,
    kind: str,
    block: int,
    tile: Tile,
    num_columns: int,
    is_gated: bool,
    gate: Gate = PLAIN_GATE,
) -> torch.Tensor:
    """Rows of pairs (T·k, columns) from rows of tokens (gated) or of pairs."""
    num_pairs, depth = sorting.num_pairs, x_RD.shape[1]
    tile = fitted(tile, depth)
    y = torch.empty(num_pairs, num_columns, dtype=x_RD.dtype, device=x_RD.device)
    weight = weight.contiguous()
    scale = weight if scale is None else scale.contiguous()
    num_blocks = sorting.expert_B.shape[0]
    starts = x_RD.data_ptr() | weight.data_ptr() | scale.data_ptr()
    is_whole = depth % max(tile.depth, 32) == 0 and x_RD.stride(0) % 16 == 0
    grouped_gemm_kernel[(num_blocks * triton.cdiv(num_columns, tile.columns),)](
        x_RD,
        sorting.order_P,
        sorting.expert_B,
        route_P,
        weight.view(torch.uint8) if kind == "fp8" else weight,
        scale.view(torch.uint8) if kind != "bf16" and is_e8m0(scale) else scale,
        y if bias_EN is None else bias_EN.contiguous(),
        y,
        num_pairs,
        num_pairs // x_RD.shape[0],
        num_columns,
        depth,
        x_RD.stride(0),
        weight.stride(0),
        scale.stride(0),
        0.0 if gate.clamp is None else gate.clamp,
        gate.gain,
        gate.shift,
        IS_GATED=is_gated,
        HAS_CLAMP=gate.clamp is not None,
        HAS_GAIN=(gate.gain, gate.shift) != (1.0, 0.0),
        HAS_BIAS=bias_EN is not None,
        FORMAT=FORMATS[kind],
        BLOCK=block,
        IS_UNIFORM=block % tile.columns == 0 and num_columns % tile.columns == 0,
        IS_ALIGNED=is_whole and starts % 16 == 0,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.columns,
        BLOCK_K=tile.depth,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return y


def moe_gemm(
    x_TD: torch.Tensor,
    ids_Tk: torch.Tensor,
    weights_Tk: torch.Tensor,
    experts: ExpertWeights,
    *,
    clamp: float | None = None,
    gain: float = 1.0,
    shift: float = 0.0,
) -> torch.Tensor:
    """Sort, gate-and-up with SwiGLU, down, combine. See `kernels.ops.moe_gemm.moe_gemm`."""
    (num_tokens, k), width, kind = ids_Tk.shape, experts.width, experts.kind
    y_TD = torch.empty(num_tokens, width, dtype=x_TD.dtype, device=x_TD.device)
    if num_tokens == 0 or k == 0:
        return y_TD.zero_()
    x_TD = x_TD if x_TD.stride(-1) == 1 else x_TD.contiguous()
    unit = matrix_unit(device_traits(x_TD.device.type, x_TD.device.index or 0))
    phase = phase_of(num_tokens * k, experts.num_experts)
    gate_up, down = (
        tile_for(unit, phase, product, kind=kind, block=experts.block)
        for product in ("gate_up", "down")
    )
    assert gate_up.rows == down.rows
    sorting = sort_tokens(ids_Tk, experts.num_experts, gate_up.rows)
    route_P = weights_Tk.float().contiguous()
    gate = Gate(clamp=clamp, gain=gain, shift=shift)
    shared = {"kind": kind, "block": experts.block}
    hidden = _grouped(
        x_TD, sorting, route_P, experts.gate_up, experts.gate_up_scale, experts.gate_up_bias,
        tile=gate_up, num_columns=experts.inner, is_gated=True, gate=gate, **shared,
    )  # fmt: skip
    pairs = _grouped(
        hidden, sorting, route_P, experts.down, experts.down_scale, experts.down_bias,
        tile=down, num_columns=width, is_gated=False, **shared,
    )  # fmt: skip
    combine_kernel[(num_tokens, triton.cdiv(width, SUM_COLUMNS))](
        pairs, y_TD, width, K=k, BLOCK=SUM_COLUMNS
    )
    return y_TD
