"""Every op, every implementation, every case: as exact as plain torch in the same dtype.

The problem sets the tolerance: max|ours - ref64| ≤ 2 · max|torch - ref64| + a floor of one
float32 rounding.
"""

import os
from typing import Any

import pytest
import torch

from kernels.hardware.traits import load_traits
from kernels.ops.registry import OPS, op_spec
from kernels.quantise import dequantise_rows
from kernels.spec import load_entry

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
REQUIRE_ALL = os.environ.get("LANEWISE_TEST_REQUIRE_ALL") == "1"
FLOOR = 1e-6


def every_implementation():
    for name in OPS:
        spec = op_spec(name)
        for implementation in spec.implementations:
            for case in spec.cases:
                yield pytest.param(
                    spec, implementation, case, id=f"{name}-{implementation.name}-{case}"
                )


def doubled(value: Any) -> Any:
    """Floating tensors in float64, everything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.itemsize > 1:
        return value.double()
    if isinstance(value, tuple | list):
        return type(value)(doubled(v) for v in value)
    return value


def wide_outputs(outputs: Any, quant: str) -> list[torch.Tensor]:
    """Outputs as float64 tensors; quantised ones are multiplied out."""
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    if quant in ("fp8", "int8"):
        outputs[0] = dequantise_rows(outputs[0], outputs.pop(), quant)
    return [o.double() for o in outputs if isinstance(o, torch.Tensor)]


@pytest.mark.parametrize(("spec", "implementation", "case"), every_implementation())
def test_an_implementation_is_as_exact_as_torch(spec, implementation, case):
    if implementation.name == "triton" and not INTERPRETED:
        message = "Triton's interpreter is off: run through `make test` (TRITON_INTERPRET=1)"
        pytest.fail(message) if REQUIRE_ALL else pytest.skip(message)
    traits = load_traits("sm_90" if implementation.name == "triton" else "avx512")
    unmet = implementation.unmet(traits, case)
    if unmet:
        pytest.skip(f"not its case: {unmet[0]}")
    generator = torch.Generator().manual_seed(7)
    args, options = load_entry(spec.example)(case, generator)
    reference = load_entry(spec.reference)
    exact = {k: v for k, v in options.items() if k != "quant"}
    ref64 = wide_outputs(reference(*doubled(args), **doubled(exact)), "none")
    quant = options.get("quant", "none")
    torch_lowp = wide_outputs(reference(*args, **options), quant)
    ours = wide_outputs(implementation.load()(*args, **options), quant)
    assert len(ours) == len(torch_lowp)
    for mine, theirs, truth in zip(ours, torch_lowp, ref64, strict=True):
        assert mine.shape == truth.shape
        if truth.numel():
            bound = 2 * (theirs - truth).abs().max() + FLOOR * truth.abs().max()
            assert (mine - truth).abs().max() <= bound
