"""The plain matrix product: one implementation, the vendor's library."""

from __future__ import annotations

from kernels.offline import Build
from kernels.requirements import dtype_in
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.gemm"


def _bytes(case: Case) -> float:
    m, n, k = case.sizes["M"], case.sizes["N"], case.sizes["K"]
    return (m * k + n * k + m * n) * ITEM_BYTES[case.dtype]


def _flops(case: Case) -> float:
    return 2.0 * case.sizes["M"] * case.sizes["N"] * case.sizes["K"]


def _case(dtype: str, m: int, n: int, k: int) -> Case:
    return Case(dtype=dtype, sizes={"M": m, "N": n, "K": k})


SPEC = OpSpec(
    name="gemm",
    summary="Matrix product of a linear layer, by the vendor's library",
    reference=f"{_FOLDER}.reference:gemm",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="torch",
            tier=Tier.VENDOR,
            entry=f"{_FOLDER}.reference:gemm",
            requires=(dtype_in("fp32", "bf16", "fp16"),),
            evidence="the vendor's library through torch; run on CPU only",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(_case("fp32", 7, 123, 64), _case("bf16", 1, 64, 576), _case("fp32", 0, 64, 64)),
    peers=("torch",),
)

BUILDS: tuple[Build, ...] = ()
