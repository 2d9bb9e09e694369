"""Attention to shared rows: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.ops.sparse_mla.builds import build
from kernels.requirements import dtype_in, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.sparse_shared_kv"


def _bytes(case: Case) -> float:
    """Queries and outputs, and each row once; an e4m3 row of 448 values, 7 scales and 64 as is."""
    sizes, item = case.sizes, ITEM_BYTES[case.dtype]
    width = sizes["D"]
    row = width * item
    if case.options.get("rows") == "fp8":
        row = width * (1 + 1 / 64) * 7 / 8 + width / 8 * item
    num_rows = sizes["W"] + sizes["K"]
    return sizes["T"] * (2 * sizes["H"] * width * item + num_rows * (row + 4))


def _flops(case: Case) -> float:
    """Two products of D for each row and head: its score and its value."""
    sizes = case.sizes
    return 4.0 * sizes["T"] * sizes["H"] * sizes["D"] * (sizes["W"] + sizes["K"])


def _case(
    dtype: str, tokens: int, heads: int, width: int, seen: tuple[int, int], **options: str
) -> Case:
    window, chosen = seen
    sizes = {"T": tokens, "H": heads, "D": width, "W": window, "K": chosen, "page": 1}
    return Case(dtype=dtype, sizes=sizes, options=options)


SPEC = OpSpec(
    name="sparse_shared_kv",
    summary="Attention to a window and chosen shared rows, with a sink and log-sum-exp",
    reference=f"{_FOLDER}.reference:sparse_shared_kv",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:sparse_shared_kv",
            requires=(through_triton(), dtype_in("fp32", "bf16", "fp16")),
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:sparse_shared_kv",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 3, 4, 32, (7, 20), phase="prefill", rows="bf16", sink="yes"),
        _case("fp32", 2, 20, 128, (16, 40), phase="decode", rows="fp8", sink="yes"),
        _case("bf16", 1, 7, 123, (1, 70), phase="decode", rows="bf16", sink="yes"),
        _case("bf16", 2, 33, 512, (8, 17), phase="prefill", rows="fp8", sink="yes"),
        _case("fp16", 1, 64, 512, (40, 0), phase="prefill", rows="bf16", sink="none"),
        _case("fp32", 7, 1, 128, (0, 1), phase="prefill", rows="fp8", sink="none"),
        _case("fp32", 0, 4, 32, (8, 5), phase="prefill", rows="bf16", sink="yes"),
    ),
    peers=("flash_mla", "flashinfer"),
)

BUILDS = tuple(
    built
    for phase, output in (("prefill", "*bf16"), ("decode", "*fp32"))
    for rows, tail, group, scales in (
        ("bf16", 0, 0, "*bf16"),
        ("fp8", 64, 64, "*fp32"),
        ("fp8 e8m0", 64, 64, "*u8"),
    )
    for built in build(
        f"{phase} D512 {rows}",
        num_values=512 - tail,
        num_tail=tail,
        group=group,
        is_tail_value=True,
        has_window=True,
        scales=scales,
        output=output,
    )
)
