"""Absorbed sparse latent attention: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.ops.sparse_mla.builds import build, merge_build
from kernels.requirements import dtype_in, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.sparse_mla"


def _bytes(case: Case) -> float:
    """Queries and outputs, and each selected row once; e4m3 rows have a scale for 128 values."""
    sizes, item = case.sizes, ITEM_BYTES[case.dtype]
    heads = sizes["T"] * sizes["H"]
    row = (sizes["L"] + sizes["R"]) * item
    if case.options.get("cache") == "fp8":
        row = sizes["L"] * (1 + 4 / 128) + sizes["R"] * item
    moved = heads * (2 * sizes["L"] + sizes["R"]) * item
    return moved + sizes["T"] * sizes["K"] * (row + 4)


def _flops(case: Case) -> float:
    """A product of L + R for the score of a row and one of L for its value."""
    sizes = case.sizes
    width = 2 * sizes["L"] + sizes["R"]
    return 2.0 * sizes["T"] * sizes["H"] * sizes["K"] * width


def _case(
    dtype: str, tokens: int, heads: int, row: tuple[int, int], chosen: int, **options: str
) -> Case:
    latent, tail = row
    sizes = {"T": tokens, "H": heads, "L": latent, "R": tail, "K": chosen, "page": 1}
    return Case(dtype=dtype, sizes=sizes, options=options)


SPEC = OpSpec(
    name="sparse_mla",
    summary="Absorbed latent attention over selected tokens, with log-sum-exp",
    reference=f"{_FOLDER}.reference:sparse_mla",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:sparse_mla",
            requires=(through_triton(), dtype_in("fp32", "bf16", "fp16")),
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:sparse_mla",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 3, 4, (32, 8), 23, phase="prefill", cache="bf16"),
        _case("fp32", 2, 20, (64, 16), 40, phase="decode", cache="fp8"),
        _case("bf16", 1, 7, (123, 0), 70, phase="decode", cache="bf16"),
        _case("bf16", 2, 33, (128, 64), 17, phase="prefill", cache="fp8"),
        _case("fp16", 1, 64, (512, 64), 35, phase="prefill", cache="bf16"),
        _case("fp32", 7, 1, (48, 0), 1, phase="prefill", cache="fp8"),
        _case("fp32", 0, 4, (32, 8), 5, phase="prefill", cache="bf16"),
    ),
    peers=("flash_mla", "flashinfer"),
)

BUILDS = (
    *(
        built
        for name, tail, group, output in (
            ("prefill L512 R64 bf16", 64, 0, "*bf16"),
            ("prefill L512 R64 fp8", 64, 128, "*bf16"),
            ("prefill L512 R0 bf16", 0, 0, "*bf16"),
            ("prefill L512 R0 fp8", 0, 128, "*bf16"),
            ("decode L512 R64 bf16", 64, 0, "*fp32"),
            ("decode L512 R64 fp8", 64, 128, "*fp32"),
        )
        for built in build(
            name, num_values=512, num_tail=tail, group=group, is_tail_value=False, output=output
        )
    ),
    merge_build(512, 32),
)
