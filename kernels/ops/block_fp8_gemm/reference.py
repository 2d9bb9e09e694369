"""Block-scaled fp8 product in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.block_fp8_gemm.formats.reference import dequantise_blocks, quantise_blocks
from kernels.quantise import FP8_GROUP, quantise_rows
from kernels.spec import Case


def widen_rows(x_MK: torch.Tensor, x_scale_MG: torch.Tensor | None) -> torch.Tensor:
    """x as numbers in float32, or in float64 when it or its scales are."""
    if x_scale_MG is None:
        return x_MK.to(torch.promote_types(x_MK.dtype, torch.float32))
    wide = torch.promote_types(x_scale_MG.dtype, torch.float32)
    spread = x_scale_MG.to(wide).repeat_interleave(FP8_GROUP, dim=-1)
    return x_MK.to(wide) * spread[:, : x_MK.shape[1]]


def block_fp8_gemm(
    x_MK: torch.Tensor,
    x_scale_MG: torch.Tensor | None,
    weight_NK: torch.Tensor,
    weight_scale: torch.Tensor,
    *,
    block: int,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """See `kernels.ops.block_fp8_gemm.block_fp8_gemm`; float64 scales or x give float64."""
    wide_MK = widen_rows(x_MK, x_scale_MG)
    weight = dequantise_blocks(weight_NK, weight_scale, block, wide_MK.dtype)
    y_MN = wide_MK @ weight.mT
    return y_MN if wide_MK.dtype == torch.float64 else y_MN.to(out_dtype)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments; option `x` "wide" keeps x in the case's dtype, `scale` "e8m0" packs."""
    m, n, k = (case.sizes[s] for s in "MNK")
    dtype = TORCH_DTYPES[case.dtype]
    block = int(case.options["block"].partition("x")[0])
    weight = torch.randn(n, k, generator=generator) / max(k, 1) ** 0.5
    has_e8m0 = case.options.get("scale") == "e8m0"
    weight_NK, weight_scale = quantise_blocks(weight, block, has_e8m0=has_e8m0)
    x_MK = torch.randn(m, k, generator=generator)
    options = {"block": block, "out_dtype": dtype}
    if case.options.get("x") == "wide":
        strided = torch.cat((x_MK, x_MK), 1).to(dtype)[:, :k]
        return (strided, None, weight_NK, weight_scale), options
    padded = torch.nn.functional.pad(x_MK, (0, -k % FP8_GROUP, 0, 1))  # never empty
    values_MK, x_scale_MG = quantise_rows(padded, "fp8")
    return (values_MK[:m, :k].contiguous(), x_scale_MG[:m], weight_NK, weight_scale), options
