"""RMSNorm: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.requirements import at_most, dtype_in, on_backends, option_in, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.rms_norm"


def _bytes(case: Case) -> float:
    """Reads x (and the residual), writes y (and the sum); the weight is read once."""
    size, item = case.sizes["T"] * case.sizes["D"], ITEM_BYTES[case.dtype]
    streams = 1 + (2 if case.options.get("residual") == "yes" else 0)
    quant = case.options.get("quant", "none")
    return size * (streams * item + (item if quant == "none" else 1)) + case.sizes["D"] * item


def _flops(case: Case) -> float:
    """A square, an addition and two products for each value."""
    return 4.0 * case.sizes["T"] * case.sizes["D"]


def _case(dtype: str, rows: int, width: int, **options: str) -> Case:
    return Case(dtype=dtype, sizes={"T": rows, "D": width}, options=options)


SPEC = OpSpec(
    name="rms_norm",
    summary="RMSNorm with optional residual addition and fp8 or int8 quantisation",
    reference=f"{_FOLDER}.reference:rms_norm",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:rms_norm",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("D", 16384, "a row is held in registers"),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:rms_norm",
            requires=(on_backends("cpu"), option_in("quant", "none")),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:rms_norm",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 1, 576),
        _case("bf16", 7, 576, residual="yes"),
        _case("fp32", 3, 123, quant="int8"),
        _case("fp32", 5, 384, quant="fp8", residual="yes"),
        _case("bf16", 4, 1024, quant="fp8"),
        _case("fp16", 2, 4096),
        _case("fp32", 0, 64, residual="yes"),
    ),
    peers=("liger_kernel",),
)

_POINTERS = {
    "x_ptr": "*bf16",
    "residual_ptr": "*bf16",
    "weight_ptr": "*bf16",
    "y_ptr": "*bf16",
    "summed_ptr": "*bf16",
    "scale_ptr": "*fp32",
    "x_stride": "i32",
    "residual_stride": "i32",
    "num_columns": "i32",
    "num_groups": "i32",
    "eps": "fp32",
}
_NO_E4M3 = "this family has no e4m3 conversion: rows are quantised to int8 there"


def _build(name: str, *, quant: int, groups: int, group: int, y: str, limit: float) -> Build:
    return Build(
        name=name,
        kernel=f"{_FOLDER}.triton_kernel:rms_norm_kernel",
        signature=_POINTERS | {"y_ptr": y},
        constexprs={
            "HAS_RESIDUAL": True,
            "QUANT": quant,
            "LIMIT": limit,
            "GROUPS": groups,
            "GROUP": group,
        },
        num_warps=16 if quant == 2 else 8,
        skip=dict.fromkeys(("sm_80", "sm_86", "gfx942", "gfx1100"), _NO_E4M3) if quant == 1 else {},
    )


BUILDS = (
    _build("D4096", quant=0, groups=1, group=4096, y="*bf16", limit=448.0),
    _build("D4096 fp8", quant=1, groups=32, group=128, y="*fp8e4nv", limit=448.0),
    _build("D4096 int8", quant=2, groups=1, group=4096, y="*i8", limit=127.0),
    _build("D7168", quant=0, groups=1, group=8192, y="*bf16", limit=448.0),
)
