"""Rotary embedding with insertion: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.requirements import at_most, dtype_in, e4m3fn_where, on_backends, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.rotary_insert"


def _bytes(case: Case) -> float:
    """Reads q, k (and v), writes q and k, or the cache's rows of k and v."""
    sizes, item, cache = case.sizes, ITEM_BYTES[case.dtype], case.options.get("cache", "none")
    row = sizes["T"] * sizes["D"]
    if cache == "none":
        return 2 * row * (sizes["H"] + sizes["K"]) * item
    return row * (2 * sizes["H"] * item + 2 * sizes["K"] * (item + ITEM_BYTES[cache]))


def _flops(case: Case) -> float:
    """Three operations for each value that turns, four for one that is normalised."""
    sizes = case.sizes
    per_head = 3.0 * sizes["R"]
    per_head += 4.0 * sizes["D"] if case.options.get("qk_norm") == "yes" else 0.0
    return sizes["T"] * (sizes["H"] + sizes["K"]) * per_head


def _case(dtype: str, sizes: tuple[int, ...], **options: str) -> Case:
    names = ("T", "H", "K", "D", "R", "page")
    return Case(dtype=dtype, sizes=dict(zip(names, sizes, strict=True)), options=options)


SPEC = OpSpec(
    name="rotary_insert",
    summary="Rotary embedding, head norm before it, insertion into a paged cache after it",
    reference=f"{_FOLDER}.reference:rotary_insert",
    example=f"{_FOLDER}.example:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:rotary_insert",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("D", 2048, "a head is held in registers"),
                e4m3fn_where("cache"),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:rotary_insert",
            requires=(on_backends("cpu"), dtype_in("fp32", "bf16", "fp16")),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:rotary_insert",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("bf16", (7, 9, 3, 64, 64, 16), style="half", cache="bf16"),
        _case("fp32", (1, 4, 2, 32, 32, 4), style="half", qk_norm="yes", cache="fp32"),
        _case("bf16", (5, 3, 2, 24, 12, 4), style="half", qk_norm="yes", cache="none"),
        _case("bf16", (3, 5, 1, 48, 16, 4), style="interleaved", qk_norm="yes", cache="bf16"),
        _case("fp32", (3, 5, 2, 32, 32, 4), style="interleaved", cache="fp8"),
        _case("fp16", (4, 7, 0, 48, 16, 0), style="interleaved", inverse="yes", cache="none"),
        _case("fp32", (1, 123, 1, 16, 6, 0), style="interleaved", cache="none"),
        _case("fp32", (0, 4, 2, 32, 32, 4), style="half", cache="fp32"),
    ),
    peers=("liger_kernel", "vllm"),
)

_POINTERS = ("q_ptr", "k_ptr", "v_ptr", "q_weight_ptr", "k_weight_ptr", "q_out_ptr", "k_out_ptr")
_SIGNATURE = dict.fromkeys(_POINTERS, "*bf16") | {
    "cos_ptr": "*fp32",
    "sin_ptr": "*fp32",
    "positions_ptr": "*i64",
    "slots_ptr": "*i64",
    "q_token_stride": "i32",
    "q_head_stride": "i32",
    "k_token_stride": "i32",
    "k_head_stride": "i32",
    "v_token_stride": "i32",
    "v_head_stride": "i32",
    "table_stride": "i32",
    "num_heads": "i32",
    "num_kv": "i32",
    "eps": "fp32",
    "scale": "fp32",
}
_NO_E4M3 = "this family has no e4m3fn conversion: its cache is bf16"


def _build(
    name: str,
    widths: tuple[int, int],
    tile: tuple[int, int, int, int],
    *flags: str,
    cache: str = "*bf16",
) -> Build:
    """`widths` are (D, R), `tile` (HALF, REST, WIDTH, HEADS), `flags` the constants that hold."""
    names = ("HALF", "REST", "WIDTH", "HEADS")
    switches = (
        "IS_HALF", "TURNS_LAST", "IS_INVERSE", "HAS_POSITIONS",
        "NORM_Q", "NORM_K", "INSERTS", "HAS_V",
    )  # fmt: skip
    no_e4m3 = ("sm_80", "sm_86", "gfx942", "gfx1100") if cache == "*fp8e4nv" else ()
    return Build(
        name=name,
        kernel=f"{_FOLDER}.triton_kernel:rotary_insert_kernel",
        signature=_SIGNATURE | {"k_out_ptr": cache},
        constexprs={
            "D": widths[0],
            "R": widths[1],
            **dict(zip(names, tile, strict=True)),
            **{switch: switch in flags for switch in switches},
        },
        skip=dict.fromkeys(no_e4m3, _NO_E4M3),
    )


_GQA = ("IS_HALF", "HAS_POSITIONS", "INSERTS", "HAS_V")
_NORMS = ("NORM_Q", "NORM_K")
BUILDS = (
    _build("D64 half", (64, 64), (32, 0, 64, 16), *_GQA),
    _build("D128 half norm", (128, 128), (64, 0, 128, 16), *_GQA, *_NORMS),
    _build("D128 half fp8", (128, 128), (64, 0, 128, 16), *_GQA, *_NORMS, cache="*fp8e4nv"),
    _build("D128 R96 half", (128, 96), (64, 32, 128, 16), "IS_HALF"),
    _build("D128 interleaved", (128, 128), (64, 0, 128, 16)),
    _build(
        "D512 R64 last", (512, 64), (32, 512, 512, 4),
        "TURNS_LAST", "HAS_POSITIONS", "INSERTS", *_NORMS,
    ),
    _build(
        "D512 R64 inverse", (512, 64), (32, 512, 512, 4),
        "TURNS_LAST", "HAS_POSITIONS", "IS_INVERSE",
    ),
)  # fmt: skip
