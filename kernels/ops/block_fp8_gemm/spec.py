"""Block-scaled fp8 product: what runs it where, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.offline import TARGETS, Build
from kernels.ops.block_fp8_gemm.tiles import FAMILIES_BY_UNIT, tile_for
from kernels.requirements import dtype_in, fp8_encoded_as, option_in, through_triton, trait
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.block_fp8_gemm"
_BLOCKS = ("128x128", "32x32")


def _bytes(case: Case) -> float:
    """Reads x and the weight, writes y; scales are 1/128 or less of that."""
    m, n, k = (case.sizes[s] for s in "MNK")
    item = ITEM_BYTES[case.dtype]
    return n * k + m * k * (item if case.options.get("x") == "wide" else 1) + m * n * item


def _flops(case: Case) -> float:
    return 2.0 * case.sizes["M"] * case.sizes["N"] * case.sizes["K"]


def _case(dtype: str, m: int, n: int, k: int, **options: str) -> Case:
    block = options.pop("block", "128x128")
    return Case(dtype=dtype, sizes={"M": m, "N": n, "K": k}, options={"block": block} | options)


SPEC = OpSpec(
    name="block_fp8_gemm",
    summary="Linear layer with e4m3 weights in scaled 128×128 or 32×32 blocks",
    reference=f"{_FOLDER}.reference:block_fp8_gemm",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:block_fp8_gemm",
            requires=(
                through_triton(),
                trait("fp8_mma", "the matrix unit multiplies e4m3 as stored"),
                fp8_encoded_as("e4m3fn", "the same byte is another number there"),
                option_in("x", "none", "fp8"),
                option_in("block", *_BLOCKS),
                dtype_in("fp32", "bf16", "fp16"),
            ),
        ),
        Implementation(
            name="triton_decoded",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:block_fp8_gemm_decoded",
            requires=(
                through_triton(),
                trait("bf16_mma", "weights are decoded to bf16 for the matrix unit"),
                option_in("block", *_BLOCKS),
                dtype_in("bf16", "fp16"),
            ),
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:block_fp8_gemm",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("bf16", 1, 64, 256),
        _case("bf16", 7, 123, 123),
        _case("fp32", 40, 192, 256, scale="e8m0"),
        _case("fp16", 3, 72, 96, block="32x32", scale="e8m0"),
        _case("bf16", 2, 64, 1024),
        _case("bf16", 7, 123, 256, x="wide"),
        _case("fp16", 5, 100, 64, block="32x32", x="wide"),
        _case("bf16", 0, 64, 128),
    ),
    peers=("deep_gemm",),
)

_NO_E4M3 = "no e4m3fn products: the decoded builds serve this family"
_HAS_E4M3 = "e4m3 rows are multiplied as they are here"
_OTHER_TILE = "another tile of the table serves this family"


def _skip(unit: str, x: str) -> Mapping[str, str]:
    others = dict.fromkeys((f for f in TARGETS if f not in FAMILIES_BY_UNIT[unit]), _OTHER_TILE)
    if x == "e4m3":
        others |= dict.fromkeys(("sm_80", "sm_86", "gfx942", "gfx1100"), _NO_E4M3)
    if x == "bytes":
        others |= dict.fromkeys(("sm_89", "sm_90", "sm_100", "sm_120"), _HAS_E4M3)
    return others


def _build(unit: str, num_rows: int, *, x: str, block: int, splits: int = 1) -> Build:
    is_native = x == "e4m3"
    tile = tile_for(unit, num_rows, x, block)
    pointer = {"e4m3": "*fp8e4nv", "bytes": "*u8", "wide": "*bf16"}[x]
    return Build(
        name=f"{unit} M{num_rows} {x} {block}x{block}",
        kernel=f"{_FOLDER}.triton_kernel:block_fp8_gemm_kernel",
        signature={
            "x_ptr": pointer,
            "x_scale_ptr": "*fp32",
            "weight_ptr": "*fp8e4nv" if is_native else "*u8",
            "weight_scale_ptr": "*fp32" if block == 128 else "*u8",
            "y_ptr": "*fp32" if splits > 1 else "*bf16",
            **dict.fromkeys(("num_rows", "num_columns", "depth", "x_stride"), "i32"),
        },
        constexprs={
            "BLOCK": block,
            "GROUP": 128,
            "HAS_X_SCALE": x != "wide",
            "IS_NATIVE": is_native,
            "IS_ALIGNED": True,
            "SPLITS": splits,
            "BLOCK_M": tile.rows,
            "BLOCK_N": tile.columns,
            "BLOCK_K": tile.depth,
            "GROUP_M": 8,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        skip=_skip(unit, x),
    )


def _builds(unit: str) -> tuple[Build, ...]:
    """Prefill of 4096 rows and decode of 16, as DeepSeek-V4 (128) and V4.1 (32) call them."""
    builds = (
        _build(unit, 4096, x="wide", block=128),
        _build(unit, 16, x="wide", block=128, splits=8),
        _build(unit, 4096, x="wide", block=32),
    )
    if unit in ("mma.sync", "mfma", "wmma"):
        builds += (_build(unit, 4096, x="bytes", block=128),)
    if unit in ("mma.sync", "wgmma", "tcgen05"):
        builds += (
            _build(unit, 4096, x="e4m3", block=128),
            _build(unit, 16, x="e4m3", block=128, splits=8),
            _build(unit, 4096, x="e4m3", block=32),
        )
    return builds


BUILDS = (
    *(build for unit in FAMILIES_BY_UNIT for build in _builds(unit)),
    Build(
        name="sum of 8 pieces",
        kernel=f"{_FOLDER}.triton_kernel:sum_pieces_kernel",
        signature={"partial_ptr": "*fp32", "y_ptr": "*bf16", "size": "i32"},
        constexprs={"SPLITS": 8, "BLOCK": 1024},
    ),
)
