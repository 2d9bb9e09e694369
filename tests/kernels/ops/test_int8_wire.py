"""Laws of the int8 payloads."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ShapeError
from kernels.native.library import build_problem
from kernels.ops import int8_wire as wire

IMPLS = ["torch", "cpu", *(["triton"] if os.environ.get("TRITON_INTERPRET") == "1" else [])]
if build_problem() is None:
    IMPLS.append("native")
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
few = settings(max_examples=12, deadline=None)


def run(impl, x, payload, layout, *, wants_values):
    """Through the implementation itself: a CPU is not a device that Triton compiles for."""
    from kernels.ops.int8_wire.spec import SPEC

    return SPEC.find(impl).load()(x, payload, layout, wants_values=wants_values)


def values(count, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(count, generator=generator) * 6 - 3
    return (torch.randn(count, generator=generator) * size.exp()).to(dtype)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(count=st.integers(0, 700), dtype=DTYPES, seed=st.integers(0, 999))
def test_an_error_is_at_most_half_a_step(impl, count, dtype, seed):
    x = values(count, dtype, seed)
    layout = wire.layout_of(x)
    payload, decoded = run(impl, x, None, layout, wants_values=True)
    assert payload.shape == (-(-count // 128), 132)
    assert decoded.dtype == dtype
    step = payload[:, 128:].contiguous().view(torch.float32).repeat_interleave(128)[:count]
    error = (decoded.float() - x.float()).abs()
    rounding = decoded.float().abs() * torch.finfo(dtype).eps
    assert (error <= step * 0.5 * (1 + 1e-5) + rounding).all()


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(count=st.integers(1, 700), dtype=DTYPES, seed=st.integers(0, 999))
def test_encoding_what_was_decoded_gives_the_same_payload(impl, count, dtype, seed):
    x = values(count, dtype, seed)
    layout = wire.layout_of(x)
    payload, decoded = run(impl, x, None, layout, wants_values=True)
    again, twice = run(impl, decoded, None, layout, wants_values=True)
    assert torch.equal(again, payload)
    assert torch.equal(twice, decoded)


@few
@given(count=st.integers(0, 700), dtype=DTYPES, seed=st.integers(0, 999))
def test_every_implementation_writes_the_same_bytes(count, dtype, seed):
    x = values(count, dtype, seed)
    payloads = [run(i, x, None, wire.layout_of(x), wants_values=False)[0] for i in IMPLS]
    assert all(torch.equal(payload, payloads[0]) for payload in payloads)


@pytest.mark.parametrize("impl", IMPLS)
@few
@given(
    tokens=st.integers(1, 5), heads=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_unpacking_undoes_packing(impl, tokens, heads, seed):
    num_heads = sum(heads)
    if num_heads == 0:
        return
    x = values(tokens * num_heads * 24, torch.float32, seed).view(tokens, num_heads, 24)
    layout = wire.layout_of(x, 1, heads)
    payload, decoded = run(impl, x, None, layout, wants_values=True)
    pieces = payload.split(layout.blocks)
    for piece, mine, theirs in zip(pieces, x.split(heads, 1), decoded.split(heads, 1), strict=True):
        alone = wire.layout_of(mine.reshape(-1))
        assert torch.equal(run(impl, None, piece, alone, wants_values=True)[1], theirs.flatten())
        assert torch.equal(run(impl, mine.reshape(-1), None, alone, wants_values=False)[0], piece)


def test_an_all_to_all_there_and_back_is_a_round_trip():
    ranks, heads, tokens = 3, (2, 1, 2), (4, 2, 3)
    parts = [values(t * 5 * 128, torch.bfloat16, t).view(t, 5, 128) for t in tokens]
    there = [wire.encode(x, wire.layout_of(x, 1, heads)) for x in parts]
    cut = [p.split(wire.layout_of(x, 1, heads).blocks) for p, x in zip(there, parts, strict=True)]
    held = []
    for rank in range(ranks):
        received = torch.cat([cut[sender][rank] for sender in range(ranks)])
        shape = (sum(tokens), heads[rank], 128)
        layout = wire.Layout(shape=shape, dtype=torch.bfloat16, axis=0, sizes=tokens)
        held.append((wire.decode(received, layout), layout))
    back = [wire.encode(x, layout).split(layout.blocks) for x, layout in held]
    for rank, x in enumerate(parts):
        received = torch.cat([back[sender][rank] for sender in range(ranks)])
        layout = wire.layout_of(x, 1, heads)
        assert torch.equal(wire.decode(received, layout), wire.round_trip(x, layout)[1])


def test_the_owner_holds_what_the_others_decode():
    x = values(1000, torch.bfloat16, 1).view(10, 100)
    payload, mine = wire.round_trip(x)
    theirs = wire.decode(payload, wire.layout_of(x.reshape(-1)))
    assert torch.equal(mine.flatten(), theirs)
    assert mine.shape == x.shape


def test_what_does_not_fit_is_refused():
    x = torch.zeros(4, 6, 8)
    with pytest.raises(ShapeError, match=r"pieces of \(2, 3\) do not fill axis 1 of 6"):
        wire.layout_of(x, 1, (2, 3))
    with pytest.raises(ShapeError, match="axis 3"):
        wire.Layout(shape=(4,), dtype=torch.float32, axis=3, sizes=(4,))
    with pytest.raises(ShapeError, match="payload has shape"):
        wire.decode(torch.zeros(1, 132).byte(), wire.layout_of(x, 1, (3, 3)))
