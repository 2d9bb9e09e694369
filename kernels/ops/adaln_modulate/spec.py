"""Adaptive layer norm: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.requirements import at_most, dtype_in, on_backends, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.adaln_modulate"


def _bytes(case: Case) -> float:
    """Reads x (and the branch), writes y (and x'); y alone is x' where nothing follows."""
    streams = 2
    if case.options.get("residual") == "yes":
        streams = 3 if case.options.get("norm") == "none" else 4
    return streams * case.sizes["T"] * case.sizes["C"] * ITEM_BYTES[case.dtype]


def _flops(case: Case) -> float:
    """Mean, variance, norm, scale, shift and gate: about eight operations for each value."""
    return 8.0 * case.sizes["T"] * case.sizes["C"]


def _case(dtype: str, tokens: int, width: int, **options: str) -> Case:
    return Case(dtype=dtype, sizes={"T": tokens, "C": width}, options=options)


SPEC = OpSpec(
    name="adaln_modulate",
    summary="Gated residual, norm, scale and shift; a row of modulation for each token",
    reference=f"{_FOLDER}.reference:adaln_modulate",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:adaln_modulate",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("C", 16384, "a row is held in registers"),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:adaln_modulate",
            requires=(on_backends("cpu"), dtype_in("fp32", "bf16", "fp16")),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:adaln_modulate",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 1, 192, norm="layer"),
        _case("bf16", 8, 192, norm="layer", residual="yes"),
        _case("bf16", 7, 123, norm="rms", table="yes"),
        _case("fp32", 6, 123, norm="rms", residual="yes"),
        _case("fp16", 5, 64, norm="layer", residual="yes", table="yes"),
        _case("bf16", 4, 64, norm="none", residual="yes", table="yes"),
        _case("bf16", 4, 123, norm="none"),
        _case("fp32", 0, 64, norm="layer", residual="yes"),
    ),
    peers=("diffusers",),
)

_SIGNATURE = {
    "x_ptr": "*bf16",
    "branch_ptr": "*bf16",
    "scale_ptr": "*bf16",
    "shift_ptr": "*bf16",
    "gate_ptr": "*bf16",
    "rows_ptr": "*i64",
    "y_ptr": "*bf16",
    "summed_ptr": "*bf16",
    "x_stride": "i32",
    "branch_stride": "i32",
    "scale_stride": "i32",
    "shift_stride": "i32",
    "gate_stride": "i32",
    "num_columns": "i32",
    "tokens_per_row": "i32",
    "eps": "fp32",
}


def _build(
    name: str, *, block: int, norm: int, warps: int, rows: bool, is_last: bool = False
) -> Build:
    return Build(
        name=name,
        kernel=f"{_FOLDER}.triton_kernel:adaln_modulate_kernel",
        signature=_SIGNATURE,
        constexprs={
            "NORM": norm,
            "HAS_BRANCH": True,
            "HAS_GATE": True,
            "HAS_SCALE": not is_last,
            "HAS_ROWS": rows,
            "WRITE_Y": not is_last,
            "BLOCK": block,
        },
        num_warps=warps,
    )


# Wan 2.2 A14B has 5120 channels, its 5B model 3072, MiniMax-H3 5376.
BUILDS = (
    _build("C5120 layer", block=8192, norm=2, warps=16, rows=False),
    _build("C3072 layer rows", block=4096, norm=2, warps=8, rows=True),
    _build("C5376 rms rows", block=8192, norm=1, warps=16, rows=True),
    _build("C5376 last rows", block=8192, norm=0, warps=16, rows=True, is_last=True),
)
