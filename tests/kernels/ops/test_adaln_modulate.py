"""Laws of the adaptive layer norm."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.ops.adaln_modulate import Modulation, adaln_modulate

shapes = st.tuples(st.integers(1, 80), st.integers(2, 96))
seeds = st.integers(0, 2**20)
norms = st.sampled_from(["layer", "rms", "none"])
IMPLEMENTATIONS = ["cpu", "torch"]


def tensors(seed, *sizes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in sizes]


def table(seed, rows, width):
    scale, shift, gate = tensors(seed, *[(rows, width)] * 3)
    return {"scale": scale, "shift": shift, "gate": gate}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(shape=shapes, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_zero_scale_and_shift_leave_the_norm(impl, shape, seed):
    (x,) = tensors(seed, shape)
    zeros = torch.zeros(1, shape[1])
    modulation = Modulation(scale=zeros, shift=zeros)
    layer, summed = adaln_modulate(x, modulation, norm="layer", eps=1e-5, impl=impl)
    rms, _ = adaln_modulate(x, modulation, norm="rms", eps=1e-5, impl=impl)
    assert summed is None
    torch.testing.assert_close(layer, F.layer_norm(x, (shape[1],), eps=1e-5))
    torch.testing.assert_close(rms, F.rms_norm(x, (shape[1],), eps=1e-5))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(shape=shapes, seed=seeds, norm=norms)
@settings(max_examples=20, deadline=None)
def test_a_closed_gate_keeps_the_stream_and_an_absent_one_adds(impl, shape, seed, norm):
    x, branch = tensors(seed, shape, shape)
    closed = Modulation(gate=torch.zeros(1, shape[1]))
    y, summed = adaln_modulate(x, closed, branch, norm=norm, impl=impl)
    assert torch.equal(summed, x)
    torch.testing.assert_close(y, adaln_modulate(x, Modulation(), norm=norm, impl=impl)[0])
    assert torch.equal(adaln_modulate(x, Modulation(), branch, norm=norm, impl=impl)[1], x + branch)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(per_row=st.integers(1, 40), rows=st.integers(1, 3), seed=seeds, norm=norms)
@settings(max_examples=20, deadline=None)
def test_rows_by_index_are_rows_by_batch(impl, per_row, rows, seed, norm):
    x, branch = tensors(seed, *[(per_row * rows, 24)] * 2)
    values = table(seed + 1, rows, 24)
    index = torch.arange(rows).repeat_interleave(per_row)
    by_batch = adaln_modulate(x, Modulation(**values), branch, norm=norm, impl=impl)
    by_index = adaln_modulate(x, Modulation(**values, rows=index), branch, norm=norm, impl=impl)
    for left, right in zip(by_batch, by_index, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@given(seed=seeds, norm=norms)
@settings(max_examples=20, deadline=None)
def test_the_order_of_tokens_does_not_matter(impl, seed, norm):
    generator = torch.Generator().manual_seed(seed)
    (x,) = tensors(seed, (130, 16))
    index = torch.arange(130) // 65 * 3 + 1
    order = torch.randperm(130, generator=generator)
    values = table(seed + 1, 5, 16)
    straight, _ = adaln_modulate(x, Modulation(**values, rows=index), norm=norm, impl=impl)
    mixed = Modulation(**values, rows=index[order])
    shuffled, _ = adaln_modulate(x[order], mixed, norm=norm, impl=impl)
    torch.testing.assert_close(shuffled, straight[order])


def test_nothing_after_the_residual_returns_the_residual_once():
    x, branch = tensors(1, (4, 8), (4, 8))
    gate = torch.ones(2, 8)
    y, summed = adaln_modulate(x, Modulation(gate=gate), branch, norm="none")
    assert y is summed
    torch.testing.assert_close(y, x + branch)


def test_callers_learn_what_is_wrong():
    x = torch.zeros(4, 8)
    with pytest.raises(ShapeError, match="scale and shift"):
        adaln_modulate(x, Modulation(scale=torch.zeros(1, 8)))
    with pytest.raises(ShapeError, match="do not divide"):
        adaln_modulate(x, Modulation(gate=torch.zeros(3, 8)), x)
    with pytest.raises(ShapeError, match="norm is 'group'"):
        adaln_modulate(x, Modulation(), norm="group")
