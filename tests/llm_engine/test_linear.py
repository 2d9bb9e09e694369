"""The packed bfloat16 map against plain torch, both against float64."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from llm_engine.layers.linear import Linear, can_pack


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 7, 8, 123])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_error_is_at_most_twice_that_of_torch(
    num_rows: int, has_bias: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(77, 48, generator=generator).to(dtype)
    bias = torch.randn(77, generator=generator).to(dtype) if has_bias else None
    x = torch.randn(num_rows, 48, generator=generator).to(dtype)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    theirs = (F.linear(x, weight, bias).double() - exact).abs().max()
    linear = Linear.build(weight, bias)
    ours = (linear(x).double() - exact).abs().max()
    assert ours <= 2 * theirs + torch.finfo(dtype).eps
    assert linear.num_parameters == 77 * 48 + (77 if has_bias else 0)


def test_float32_is_left_as_it_is() -> None:
    weight = torch.ones(3, 2)
    assert not can_pack(weight)
    assert Linear.build(weight).weight is weight
