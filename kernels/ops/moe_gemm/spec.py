"""Experts: what runs them where, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.offline import TARGETS, Build
from kernels.ops.block_fp8_gemm.formats import FORMATS
from kernels.ops.block_fp8_gemm.tiles import FAMILIES_BY_UNIT
from kernels.ops.moe_gemm.tiles import fitted, tile_for
from kernels.requirements import dtype_in, on_backends, option_in, through_triton, trait
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Requirement, Tier

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits

_FOLDER = "kernels.ops.moe_gemm"


def _bytes(case: Case) -> float:
    """Weights of the experts that a uniform routing hits, x read and y written."""
    t, e, k, d, i = (case.sizes[s] for s in "TEkDI")
    hit = e * (1 - (1 - k / e) ** t)
    kind = case.options.get("weights", "bf16")
    item = ITEM_BYTES[case.dtype]
    return hit * 3 * d * i * (item if kind == "bf16" else ITEM_BYTES[kind]) + 2 * t * d * item


def _flops(case: Case) -> float:
    t, k, d, i = (case.sizes[s] for s in "TkDI")
    return 6.0 * t * k * d * i


def _case(dtype: str, sizes: tuple[int, int, int, int, int], **options: str) -> Case:
    return Case(dtype=dtype, sizes=dict(zip("TEkDI", sizes, strict=True)), options=options)


def _mxfp4_in_bf16() -> Requirement:
    """A ue8m0 scale spans the exponents of bf16, not those of fp16."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del traits
        if case.options.get("weights") != "mxfp4" or case.dtype == "bf16":
            return None
        return f"mxfp4 weights are exact in bf16, and may overflow in {case.dtype}"

    return Requirement(name="bf16 where weights=mxfp4", unmet=unmet)


SPEC = OpSpec(
    name="moe_gemm",
    summary="Grouped experts: gate-and-up with SwiGLU, down, weighted sum; bf16, fp8 or mxfp4",
    reference=f"{_FOLDER}.reference:moe_gemm",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:moe_gemm",
            requires=(
                through_triton(),
                trait("bf16_mma", "weights are decoded to 16 bits for the matrix unit"),
                dtype_in("bf16", "fp16"),
                _mxfp4_in_bf16(),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:moe_gemm",
            requires=(
                on_backends("cpu"),
                option_in("weights", "none", "bf16"),
                dtype_in("fp32", "bf16"),
            ),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:moe_gemm",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("bf16", (1, 8, 2, 64, 32), weights="bf16"),
        _case("fp32", (7, 8, 3, 123, 36), weights="bf16", clamp="yes"),
        _case("fp16", (7, 8, 3, 123, 36), weights="bf16"),
        _case("bf16", (40, 2, 2, 64, 64), weights="bf16"),
        _case("bf16", (5, 4, 2, 160, 96), weights="fp8", clamp="yes"),
        _case("fp16", (5, 4, 2, 96, 64), weights="fp8", block="32x32", scale="e8m0"),
        _case("bf16", (7, 6, 2, 96, 64), weights="mxfp4", clamp="yes"),
        _case("bf16", (0, 4, 2, 64, 32), weights="bf16"),
        _case("bf16", (6, 4, 2, 64, 96), weights="mxfp4", clamp="yes", gain="yes", bias="yes"),
        _case("fp32", (5, 4, 2, 48, 20), weights="bf16", clamp="yes", gain="yes", bias="yes"),
    ),
    peers=("vllm", "sglang"),
)

_GPT_OSS_WIDTH = 2880
_OTHER_TILE = "another tile of the table serves this family"


def _build(
    unit: str, kind: str, phase: str, product: str, *, block: int = 128, is_gpt_oss: bool = False
) -> Build:
    tile = tile_for(unit, phase, product, kind=kind, block=block)
    if is_gpt_oss:
        tile = fitted(tile, _GPT_OSS_WIDTH)
    integers = ("num_pairs", "pairs_per_row", "num_columns", "depth", "x_stride")
    return Build(
        name=f"{unit} {kind} {product} {phase}" + (" bias gain" if is_gpt_oss else ""),
        kernel=f"{_FOLDER}.triton_kernel:grouped_gemm_kernel",
        signature={
            "x_ptr": "*bf16",
            "order_ptr": "*i32",
            "expert_ptr": "*i32",
            "route_ptr": "*fp32",
            "weight_ptr": "*bf16" if kind == "bf16" else "*u8",
            "scale_ptr": {"bf16": "*bf16", "fp8": "*fp32", "mxfp4": "*u8"}[kind],
            "bias_ptr": "*bf16",
            "y_ptr": "*bf16",
            **dict.fromkeys((*integers, "expert_stride", "scale_stride"), "i32"),
            **dict.fromkeys(("clamp", "gain", "shift"), "fp32"),
        },
        constexprs={
            "IS_GATED": product == "gate_up",
            "HAS_CLAMP": kind == "mxfp4",
            "HAS_GAIN": is_gpt_oss,
            "HAS_BIAS": is_gpt_oss,
            "FORMAT": FORMATS[kind],
            "BLOCK": block,
            "IS_UNIFORM": block % tile.columns == 0,
            "IS_ALIGNED": True,
            "BLOCK_M": tile.rows,
            "BLOCK_N": tile.columns,
            "BLOCK_K": tile.depth,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        skip={f: _OTHER_TILE for f in TARGETS if f not in FAMILIES_BY_UNIT[unit]},
    )


# bf16 as Qwen3-30B-A3B, e4m3 as DeepSeek-V3.2, mxfp4 as DeepSeek-V4-Flash: their widths are
# multiples of every tile, so one build serves all three. gpt-oss has biases, a gain, and 2880.
BUILDS = (
    *(_build(unit, "mxfp4", "decode", "down") for unit in FAMILIES_BY_UNIT),
    *(
        _build(unit, kind, phase, product)
        for unit in FAMILIES_BY_UNIT
        for kind in FORMATS
        for phase, product in (("prefill", "gate_up"), ("prefill", "down"), ("decode", "gate_up"))
    ),
    *(
        _build(unit, "mxfp4", phase, product, is_gpt_oss=True)
        for unit in FAMILIES_BY_UNIT
        for phase, product in (("prefill", "gate_up"), ("prefill", "down"), ("decode", "gate_up"))
    ),
    Build(
        name="combine k8",
        kernel=f"{_FOLDER}.triton_kernel:combine_kernel",
        signature={"pairs_ptr": "*bf16", "y_ptr": "*bf16", "width": "i32"},
        constexprs={"K": 8, "BLOCK": 1024},
    ),
)
