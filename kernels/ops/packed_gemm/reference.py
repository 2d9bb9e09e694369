"""The product with a quantised matrix in plain torch: the oracle."""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.packed_gemm.quantised import QuantisedMatrix
from kernels.spec import Case

# M rows, K inputs, N outputs, G groups of columns.


def rounded_by_group(x_MK: torch.Tensor, group: int, limit: int) -> torch.Tensor:
    """x as the product reads it: multiples of a step of its row and group, max|x| / limit."""
    groups = x_MK.unflatten(1, (-1, group))
    step = groups.abs().amax(dim=-1, keepdim=True) / limit
    steps = torch.where(step > 0, groups / step, torch.zeros_like(groups)).round()
    return (steps * step).flatten(1)


def packed_gemm(
    x_MK: torch.Tensor,
    matrix: QuantisedMatrix,
    bias_N: torch.Tensor | None = None,
    *,
    quant: str = "none",
) -> torch.Tensor:
    """See `kernels.ops.packed_gemm.packed_gemm`; `quant` "groups" rounds x as that does."""
    if quant == "groups":
        x_MK = rounded_by_group(x_MK, matrix.group, 127 if matrix.bits == 4 else 32767)
    y_MN = x_MK @ matrix.dequantised(x_MK.dtype).T
    return y_MN if bias_N is None else y_MN + bias_N.to(y_MN.dtype)


def random_matrix(
    num_rows: int, num_columns: int, generator: torch.Generator, **form: str
) -> QuantisedMatrix:
    """Random quants with scales, and minima where `minima` is "yes"; `wide`: not all float16."""
    bits, group = int(form.get("bits", "4")), int(form.get("group", "32"))
    low, high, kind = (0, 16, torch.uint8) if bits == 4 else (-128, 128, torch.int8)
    quants = torch.randint(low, high, (num_rows, num_columns), generator=generator).to(kind)
    shape = (num_rows, num_columns // group)
    scales = 0.02 * torch.rand(shape, generator=generator)
    minima = -0.1 * torch.rand(shape, generator=generator)
    if form.get("wide", "none") == "none":
        scales, minima = scales.half().float(), minima.half().float()
    has_minima = form.get("minima", "none") == "yes"
    return QuantisedMatrix(quants, scales, minima if has_minima else None, bits, group)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Normal rows, one of them with an outlier and one all zero where there are so many."""
    sizes = case.sizes
    x_MK = torch.randn(sizes["M"], sizes["K"], generator=generator)
    x_MK[1:2, 3] = 40.0
    x_MK[2:3] = 0.0
    matrix = random_matrix(sizes["N"], sizes["K"], generator, **case.options)
    bias_N = None
    if case.options.get("bias") == "yes":
        bias_N = torch.randn(sizes["N"], generator=generator)
    return (x_MK, matrix, bias_N), {"quant": "groups"}
