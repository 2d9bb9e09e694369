"""The product with a quantised matrix: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.requirements import dtype_in, native_build, on_backends
from kernels.spec import Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.packed_gemm"
NATIVE_EVIDENCE = "run and compared with float64 on CPUs with AVX2 and with AVX-512 (VNNI)"


def bytes_per_weight(bits: int, group: int, *, has_minima: bool) -> float:
    """Memory of a packed weight with float16 scales, in bytes."""
    return bits / 8 + (4 if has_minima else 2) / group


def _bytes(case: Case) -> float:
    m, n, k = case.sizes["M"], case.sizes["N"], case.sizes["K"]
    bits, group = int(case.options.get("bits", "4")), int(case.options.get("group", "32"))
    has_minima = case.options.get("minima") == "yes"
    return n * k * bytes_per_weight(bits, group, has_minima=has_minima) + 4.0 * (m * k + m * n)


def _flops(case: Case) -> float:
    return 2.0 * case.sizes["M"] * case.sizes["N"] * case.sizes["K"]


def _case(m: int, n: int, k: int, **options: str) -> Case:
    return Case(dtype="fp32", sizes={"M": m, "N": n, "K": k}, options=options)


SPEC = OpSpec(
    name="packed_gemm",
    summary="product with a matrix quantised by groups of columns, in its packed form",
    reference=f"{_FOLDER}.reference:packed_gemm",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="native",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.native:packed_gemm",
            requires=(on_backends("cpu"), dtype_in("fp32"), native_build()),
            evidence=NATIVE_EVIDENCE,
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:packed_gemm",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case(1, 123, 64, bits="4", group="32", minima="yes"),
        _case(7, 40, 96, bits="4", group="32", bias="yes"),
        _case(70, 24, 576, bits="4", group="32", minima="yes", wide="yes"),
        _case(3, 77, 32, bits="8", group="32"),
        _case(13, 16, 160, bits="8", group="16", minima="yes", wide="yes"),
        _case(0, 16, 32, bits="4", group="32"),
    ),
    peers=("torch",),
)

BUILDS: tuple[Build, ...] = ()
