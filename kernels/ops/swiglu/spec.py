"""SwiGLU: what runs it where, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.offline import Build
from kernels.requirements import (
    dtype_in,
    e4m3fn_where,
    on_backends,
    option_in,
    through_triton,
)
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Requirement, Tier

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits

_FOLDER = "kernels.ops.swiglu"
_WIDEST_INT8_ROW = 16384


def _bytes(case: Case) -> float:
    """Reads gate and up, writes the product."""
    item, quant = ITEM_BYTES[case.dtype], case.options.get("quant", "none")
    return case.sizes["T"] * case.sizes["I"] * (2 * item + (item if quant == "none" else 1))


def _flops(case: Case) -> float:
    """An exponential, an addition, a division and two products for each value."""
    return 5.0 * case.sizes["T"] * case.sizes["I"]


def _row_too_wide(traits: DeviceTraits, case: Case) -> str | None:
    del traits
    width = case.sizes["I"]
    if case.options.get("quant") != "int8" or width <= _WIDEST_INT8_ROW:
        return None
    return f"I={width} is above {_WIDEST_INT8_ROW}: int8 holds a row in registers"


def _case(dtype: str, rows: int, inner: int, **options: str) -> Case:
    return Case(dtype=dtype, sizes={"T": rows, "I": inner}, options=options)


SPEC = OpSpec(
    name="swiglu",
    summary="silu(gate) · up of a fused product, with optional clamp and fp8 or int8 quantisation",
    reference=f"{_FOLDER}.reference:swiglu",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:swiglu",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                Requirement(name="int8 row", unmet=_row_too_wide),
                e4m3fn_where("quant"),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:swiglu",
            requires=(on_backends("cpu"), option_in("quant", "none")),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:swiglu",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 1, 1536),
        _case("bf16", 7, 1536, clamp="yes"),
        _case("fp32", 3, 123, quant="int8"),
        _case("bf16", 5, 384, quant="fp8", clamp="yes"),
        _case("fp32", 2, 1100, quant="fp8"),
        _case("fp16", 2, 123),
        _case("bf16", 6, 300, clamp="yes", gain="yes"),
        _case("fp32", 3, 96, gain="yes"),
        _case("fp32", 0, 64),
    ),
    peers=("liger_kernel",),
)

_SIGNATURE = {
    "x_ptr": "*bf16",
    "y_ptr": "*bf16",
    "scale_ptr": "*fp32",
    "x_stride": "i32",
    "num_columns": "i32",
    "num_groups": "i32",
    **dict.fromkeys(("clamp", "gain", "shift"), "fp32"),
}
_NO_E4M3 = "this family has no e4m3fn conversion: rows are quantised to int8 there"


def _build(
    name: str,
    *,
    quant: int,
    tile: tuple[int, int],
    y: str,
    warps: int,
    clamp: bool = False,
    gain: bool = False,
) -> Build:
    return Build(
        name=name,
        kernel=f"{_FOLDER}.triton_kernel:swiglu_kernel",
        signature=_SIGNATURE | {"y_ptr": y},
        constexprs={
            "HAS_CLAMP": clamp,
            "HAS_GAIN": gain,
            "QUANT": quant,
            "LIMIT": 127.0 if quant == 2 else 448.0,
            "GROUPS": tile[0],
            "GROUP": tile[1],
        },
        num_warps=warps,
        skip=dict.fromkeys(("sm_80", "sm_86", "gfx942", "gfx1100"), _NO_E4M3) if quant == 1 else {},
    )


# Without quantisation and with fp8 the inner width does not enter the tile.
BUILDS = (
    _build("any I", quant=0, tile=(1, 1024), y="*bf16", warps=4),
    _build("any I clamp", quant=0, tile=(1, 1024), y="*bf16", warps=4, clamp=True),
    _build("any I clamp gain", quant=0, tile=(1, 1024), y="*bf16", warps=4, clamp=True, gain=True),
    _build("any I fp8 clamp", quant=1, tile=(8, 128), y="*fp8e4nv", warps=4, clamp=True),
    _build("I2048 int8 clamp", quant=2, tile=(1, 2048), y="*i8", warps=4, clamp=True),
    _build("I14336 int8", quant=2, tile=(1, 16384), y="*i8", warps=16),
)
