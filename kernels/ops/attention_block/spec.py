"""The attention block: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.ops.packed_gemm.spec import NATIVE_EVIDENCE, bytes_per_weight
from kernels.requirements import (
    at_most,
    dtype_in,
    multiple_of,
    native_build,
    on_backends,
    option_in,
)
from kernels.spec import Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.attention_block"


def _num_weights(case: Case) -> float:
    heads = 2 * case.sizes["H"] + 2 * case.sizes["K"]
    return float(heads * case.sizes["D"] * case.sizes["C"])


def _bytes(case: Case) -> float:
    n, c = case.sizes["N"], case.sizes["C"]
    bits, group = int(case.options.get("bits", "4")), int(case.options.get("group", "32"))
    cached = 4.0 * n * case.sizes["K"] * (case.sizes["D"] + 2)
    weights = _num_weights(case) * bytes_per_weight(bits, group, has_minima=True)
    return weights + cached + 8.0 * n * c


def _flops(case: Case) -> float:
    n = case.sizes["N"]
    return 2.0 * n * _num_weights(case) + 2.0 * n * n * case.sizes["H"] * case.sizes["D"]


def _case(sizes: tuple[int, int, int, int, int], **options: str) -> Case:
    named = dict(zip(("N", "C", "H", "K", "D"), sizes, strict=True))
    return Case(dtype="fp32", sizes=named | {"page": 16}, options={"weights": "packed", **options})


SPEC = OpSpec(
    name="attention_block",
    summary="RMSNorm, qkv, rotary, paged cache, attention, out and residual over quantised weights",
    reference=f"{_FOLDER}.reference:attention_block",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="native",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.native:attention_block",
            requires=(
                on_backends("cpu"),
                dtype_in("fp32"),
                option_in("weights", "packed"),
                option_in("sink", "none"),
                multiple_of("C", 32, "groups of columns"),
                multiple_of("D", 32, "groups of columns"),
                multiple_of("page", 16, "keys of 16 positions lie side by side"),
                at_most("D", 256, "sums of its products of 13 and 14 bits stay below 2^31"),
                at_most("H", 64, "partial sums of a token's heads lie on the stack"),
                native_build(),
            ),
            evidence=NATIVE_EVIDENCE,
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:attention_block",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case((1, 64, 3, 1, 32), minima="yes"),
        _case((123, 96, 9, 3, 64), minima="yes"),
        _case((70, 32, 4, 4, 96), bits="8", group="16", qk_norm="yes"),
        _case((700, 64, 2, 1, 32), wide="yes", minima="yes"),
        _case((0, 32, 2, 1, 32)),
    ),
    peers=("torch",),
)

BUILDS: tuple[Build, ...] = ()
