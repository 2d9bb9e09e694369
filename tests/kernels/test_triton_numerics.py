"""The casts agree with torch bit for bit, in the interpreter too."""

import os

import pytest
import torch
import triton
import triton.language as tl

from kernels.triton_numerics import cast

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off (make test)"
)


@triton.jit
def cast_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    tl.store(y_ptr + index, cast(tl.load(x_ptr + index), y_ptr.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 60.0])
def test_a_cast_equals_torchs(dtype, scale):
    x = (torch.randn(4096, generator=torch.Generator().manual_seed(3)) * scale).clamp(-448, 448)
    x[:4] = torch.tensor([0.0, -0.0, 448.0, -448.0])
    y = torch.empty(4096, dtype=dtype)
    cast_kernel[(1,)](x, y, 4096)
    assert torch.equal(y.float(), x.to(dtype).float())
