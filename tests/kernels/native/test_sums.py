"""Sums in order: the bits of plain torch, wherever the results go."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.collectives.codec import (
    decode_into,
    empty_payload,
    encode_into,
)
from kernels.collectives.reduction import combine_twice, reference_all_reduce
from kernels.native.library import build_problem
from kernels.native.sums import add_in_order
from kernels.ops.int8_wire import decode, encode, layout_of

pytestmark = pytest.mark.skipif(build_problem() is not None, reason=str(build_problem()))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
few = settings(max_examples=25, deadline=None)
COUNTS = st.sampled_from([0, 1, 15, 127, 128, 1023, 1024, 1025, 5000])


def held(num_parts, count, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(num_parts, count, generator=generator) * 30
    return list(made.to(dtype).unbind())


@few
@given(num_parts=st.integers(1, 5), count=COUNTS, dtype=DTYPES, seed=st.integers(0, 99))
def test_a_sum_has_the_bits_of_the_reference(num_parts, count, dtype, seed):
    parts = held(num_parts, count, dtype, seed)
    want = reference_all_reduce(parts)[0]
    out, copy = torch.empty_like(want), torch.empty_like(want)
    add_in_order(parts, out, copy)
    assert torch.equal(out, want)
    assert torch.equal(copy, want)
    add_in_order(parts, parts[0])
    assert torch.equal(parts[0], want)


def test_what_overflows_or_is_no_number_comes_out_as_in_torch():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        largest = torch.finfo(dtype).max
        a = torch.tensor([largest, -largest, float("nan"), float("inf"), 1.0], dtype=dtype)
        b = torch.tensor([largest, -largest, 1.0, -float("inf"), float("nan")], dtype=dtype)
        out = torch.empty_like(a)
        add_in_order([a, b], out)
        assert torch.equal(out.isnan(), (a + b).isnan())
        assert torch.equal(out.nan_to_num(7.0, 8.0, 9.0), (a + b).nan_to_num(7.0, 8.0, 9.0))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_results_go_to_two_places(dtype, reduction):
    parts = held(3, 300, torch.float32, 1)
    parts = [part.to(dtype) for part in parts]
    want = reference_all_reduce(parts, reduction)[0]
    out = torch.empty_like(want)
    combine_twice(out, parts[1], parts, reduction)
    assert torch.equal(out, want)
    assert torch.equal(parts[1], want)


@few
@given(num_parts=st.integers(1, 4), count=COUNTS, dtype=DTYPES, seed=st.integers(0, 99))
def test_payloads_are_those_of_the_reference(num_parts, count, dtype, seed):
    parts = held(num_parts, count, dtype, seed)
    payloads = [empty_payload(part, count) for part in parts]
    for part, payload in zip(parts, payloads, strict=True):
        encode_into(part, payload)
        assert torch.equal(payload, encode(part, layout_of(part), impl="torch").view(-1))
        again = torch.empty_like(part)
        decode_into(payload, again)
        assert torch.equal(again, decode(payload.view(-1, 132), layout_of(part), impl="torch"))
