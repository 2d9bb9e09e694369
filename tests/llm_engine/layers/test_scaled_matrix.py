"""Maps in FP8 blocks: fused where rows allow it, and equal to the dequantised weights."""

from __future__ import annotations

import pytest
import torch

from kernels.ops.block_fp8_gemm.formats.reference import quantise_blocks
from kernels.ops.block_fp8_gemm.reference import block_fp8_gemm
from llm_engine.layers.linear import Linear
from llm_engine.layers.scaled_matrix import ScaledMatrix
from llm_engine.weights.checkpoint import ScaledWeights

WIDE = 70


def matrix(rows: int, seed: int, block: int = 32) -> ScaledWeights:
    weight = torch.randn(rows, WIDE, generator=torch.Generator().manual_seed(seed))
    return ScaledWeights("fp8", *quantise_blocks(weight * 10.0**seed, block), block)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([64, 32, 32], [128]),
        ([64, 32, 7], [103]),
        ([64, 7, 32], [71, 32]),
        ([5, 7], [5, 7]),
        ([33], [33]),
    ],
)
def test_parts_join_where_blocks_are_whole(
    rows: list[int], parts: list[int], has_bias: bool
) -> None:
    """Magnitudes differ from matrix to matrix, so that a scale in a wrong place would show."""
    matrices = [matrix(num, seed) for seed, num in enumerate(rows)]
    bias = torch.randn(sum(rows)) if has_bias else None
    scaled = ScaledMatrix.stack(matrices, bias, block_fp8_gemm)
    assert [part.num_rows for part in scaled.parts] == parts
    x = torch.randn(3, WIDE, generator=torch.Generator().manual_seed(9))
    weight = torch.cat([each.dequantised().double() for each in matrices])
    expected = x.double() @ weight.T
    bound = 1e-5 * (x.abs().double() @ weight.abs().T)
    if bias is not None:
        expected, bound = expected + bias, bound + 1e-6 * bias.abs()
    linear = Linear.of_blocks(scaled)
    assert ((linear(x) - expected).abs() <= bound).all()
    assert linear.num_parameters == sum(rows) * WIDE + (sum(rows) if has_bias else 0)


def test_the_result_is_the_callers_to_change() -> None:
    """Updates of adapters are added in place."""
    linear = Linear.of_blocks(ScaledMatrix.stack([matrix(32, 0)], None, block_fp8_gemm))
    x = torch.ones(2, WIDE)
    before = linear(x)
    linear(x).add_(1.0)
    assert torch.equal(linear(x), before)
