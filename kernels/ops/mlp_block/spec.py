"""The MLP block: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.ops.packed_gemm.spec import NATIVE_EVIDENCE, bytes_per_weight
from kernels.requirements import (
    dtype_in,
    multiple_of,
    native_build,
    on_backends,
    option_in,
)
from kernels.spec import Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.mlp_block"


def _bytes(case: Case) -> float:
    n, c, i = case.sizes["N"], case.sizes["C"], case.sizes["I"]
    bits, group = int(case.options.get("bits", "4")), int(case.options.get("group", "32"))
    return 3.0 * c * i * bytes_per_weight(bits, group, has_minima=True) + 8.0 * n * c


def _flops(case: Case) -> float:
    return 6.0 * case.sizes["N"] * case.sizes["C"] * case.sizes["I"]


def _case(n: int, c: int, i: int, **options: str) -> Case:
    return Case(dtype="fp32", sizes={"N": n, "C": c, "I": i}, options=options)


SPEC = OpSpec(
    name="mlp_block",
    summary="RMSNorm, gate and up, SwiGLU, down and residual over quantised weights",
    reference=f"{_FOLDER}.reference:mlp_block",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="native",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.native:mlp_block",
            requires=(
                on_backends("cpu"),
                dtype_in("fp32"),
                option_in("weights", "packed"),
                multiple_of("C", 32, "groups of columns"),
                multiple_of("I", 32, "groups of columns"),
                native_build(),
            ),
            evidence=NATIVE_EVIDENCE,
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:mlp_block",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case(1, 64, 96, weights="packed", minima="yes"),
        _case(7, 96, 32, weights="packed", bits="8", group="16"),
        _case(123, 32, 160, weights="packed", minima="yes", wide="yes"),
        _case(0, 32, 32, weights="packed"),
    ),
    peers=("torch",),
)

BUILDS: tuple[Build, ...] = ()
