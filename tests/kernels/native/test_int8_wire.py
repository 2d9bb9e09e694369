"""The native forms of int8 payloads: every path and back end has the bits of plain torch."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.collectives.codec import add_into, empty_payload, encode_into, settle_into
from kernels.native.build import OPTIONS, SOURCES, find_compiler
from kernels.native.library import build_problem
from kernels.native.sums import FLOAT_KINDS, addresses_of
from kernels.ops.int8_wire import decode, encode, layout_of

pytestmark = pytest.mark.skipif(build_problem() is not None, reason=str(build_problem()))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
COUNTS = st.sampled_from([0, 1, 127, 128, 129, 1000, 1024, 4000])
few = settings(max_examples=40, deadline=None)
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mf16c", "-mfma")
# The wire alone, which is compiled in seconds.
WIRE = """
#include "int8_wire.h"
#pragma GCC visibility push(default)
using namespace lw::wire;
extern "C" {
void encode_into(int32_t kind, const void* x, int64_t count, uint8_t* out) {
  encode(Kind(kind), x, count, out);
}
void settle_into(int32_t kind, void* x, int64_t count, const uint8_t* const* payloads,
                 int32_t num_ranks, int32_t own, uint8_t* out) {
  settle(Kind(kind), x, count, {payloads, num_ranks, own}, out);
}
}
"""


def held(num_parts, count, dtype, seed, spread):
    """Blocks between 2^-spread and 2^spread in size."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(num_parts, count, generator=generator)
    blocks = torch.rand(num_parts, -(-count // 128), generator=generator) * 2 - 1
    sizes = torch.exp2(blocks * (min(spread, 8) if dtype == torch.float16 else spread))
    return list((made * sizes.repeat_interleave(128, 1)[:, :count]).to(dtype).unbind())


def settled(parts, own):
    """All payloads, that of the sum of what they decode to, and what that one decodes to."""
    payloads = [encode(part, layout_of(part), impl="torch") for part in parts]
    wide = layout_of(parts[0].float())
    total, *others = (decode(payload, wide, impl="torch") for payload in payloads)
    for share in others:
        total = total + share
    out = encode(total, wide, impl="torch")
    values = decode(out, layout_of(parts[own]), impl="torch")
    return [payload.view(-1) for payload in payloads], out.view(-1), values


@few
@given(
    num_ranks=st.integers(1, 4), count=COUNTS, dtype=DTYPES, seed=st.integers(0, 99),
    own=st.integers(0, 3), spread=st.sampled_from([0, 4, 66, 120]),
)  # fmt: skip
def test_an_owner_settles_as_the_reference_does(num_ranks, count, dtype, seed, own, spread):
    own %= num_ranks
    parts = held(num_ranks, count, dtype, seed, spread)
    payloads, want_payload, want = settled(parts, own)
    x, out = parts[own].clone(), empty_payload(parts[own], count)
    settle_into(x, payloads, own, out, "sum")
    assert torch.equal(out, want_payload)
    assert torch.equal(x, want)
    x = parts[own].clone()
    settle_into(x, payloads, own, payloads[0], "sum")
    assert torch.equal(payloads[0], want_payload), "in place of a payload"
    assert torch.equal(x, want)


def test_a_maximum_is_settled_too():
    parts = held(3, 1000, torch.bfloat16, 1, 2)
    payloads, _, _ = settled(parts, 1)
    total, out = torch.empty(1000), empty_payload(parts[0], 1000)
    add_into(payloads, total, "max")
    settle_into(parts[1], payloads, 1, out, "max")
    want = encode(total, layout_of(total), impl="torch")
    assert torch.equal(out, want.view(-1))
    assert torch.equal(parts[1], decode(want, layout_of(parts[1]), impl="torch"))


@given(step=st.integers(1 << 15, (1 << 16) - 1), exponent=st.integers(-90, 90))
@few
def test_what_lies_beside_the_middle_of_two_steps_rounds_as_a_division_does(step, exponent):
    """Where a product with the inverse of the step, not refined, would round the other way."""
    size = torch.tensor(step * 2.0**exponent, dtype=torch.float64)
    middles = (torch.arange(-63, 64) + 0.5).double() * size
    for ulps in (-2, -1, 0, 1, 2):
        beside = (middles.float().view(torch.int32) + ulps).view(torch.float32)
        x = torch.cat([(127 * size).float()[None], beside])
        payload = empty_payload(x, len(x))
        encode_into(x, payload)
        assert torch.equal(payload, encode(x, layout_of(x), impl="torch").view(-1))


@pytest.mark.parametrize("dtype", FLOAT_KINDS)
def test_what_is_no_number_stays_in_its_block(dtype):
    x = held(1, 128 * 20, dtype, 3, 2)[0]
    clean = encode(x, layout_of(x), impl="torch")
    strange = torch.tensor([float("nan"), float("inf"), -float("inf")], dtype=dtype)
    x[128 * 9 : 128 * 9 + 3] = strange
    payload = empty_payload(x, len(x))
    encode_into(x, payload)
    others = torch.arange(20) != 9
    assert torch.equal(payload.view(-1, 132)[others], clean[others])
    wide = encode(x, layout_of(x), impl="native")
    settle_into(x, [payload, payload], 1, torch.empty_like(payload), "sum")
    assert torch.equal(wide.view(-1), payload)
    assert x.view(-1, 128)[others].isfinite().all()


def compiled(folder: Path, *options: str) -> Path:
    compiler = find_compiler()
    assert compiler is not None
    source, made = folder / "wire.cpp", folder / "wire.so"
    source.write_text(WIRE)
    command = [compiler, *options, "-O1", f"-I{SOURCES}", str(source), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [8, 16])
def test_plain_code_of_either_width_writes_the_same_bytes(lanes, tmp_path):
    path = compiled(tmp_path, *OPTIONS, "-DLANEWISE_PORTABLE", f"-DLANEWISE_LANES={lanes}")
    wire = ctypes.CDLL(str(path))
    for dtype, kind in FLOAT_KINDS.items():
        for spread in (4, 100):
            parts = held(3, 1000, dtype, spread, spread)
            payloads, want_payload, want = settled(parts, 1)
            for part, payload in zip(parts, payloads, strict=True):
                out = torch.empty_like(payload)
                pointers = [ctypes.c_void_p(t.data_ptr()) for t in (part, out)]
                wire.encode_into(kind, pointers[0], ctypes.c_int64(1000), pointers[1])
                assert torch.equal(out, payload)
            x, out = parts[1].clone(), torch.empty_like(want_payload)
            pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, out)]
            shares = addresses_of(payloads)
            wire.settle_into(kind, pointers[0], ctypes.c_int64(1000), shares, 3, 1, pointers[1])
            assert torch.equal(out, want_payload)
            assert torch.equal(x, want)


@pytest.mark.slow
def test_the_form_of_avx512_compiles(tmp_path):
    """It is run where there is such a processor: the library is then built of it."""
    options = [option for option in OPTIONS if not option.startswith("-m")]
    assert b"settle_into" in compiled(tmp_path, *options, *AVX512).read_bytes()
