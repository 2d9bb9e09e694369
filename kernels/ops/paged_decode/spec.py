"""Decode over pages: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.ops.full_attention.tiles import Tile, block_dim, skipped_outside
from kernels.ops.paged_decode.tiles import TILES
from kernels.requirements import at_most, dtype_in, on_backends, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.paged_decode"


def _bytes(case: Case) -> float:
    """Reads q and each sequence's cached rows, writes o and the log-sum-exp."""
    sizes = case.sizes
    queries = sizes["B"] * sizes["H"]
    cached = 2.0 * sizes["B"] * sizes["S"] * sizes["K"] * sizes["D"]
    return (2.0 * queries * sizes["D"] + cached) * ITEM_BYTES[case.dtype] + 4.0 * queries


def _flops(case: Case) -> float:
    """Two products of a query with every cached key."""
    sizes = case.sizes
    return 4.0 * sizes["B"] * sizes["S"] * sizes["H"] * sizes["D"]


def _case(dtype: str, sizes: tuple[int, int, int, int, int, int], **options: str) -> Case:
    names = ("B", "S", "H", "K", "D", "page")
    return Case(dtype=dtype, sizes=dict(zip(names, sizes, strict=True)), options=options)


SPEC = OpSpec(
    name="paged_decode",
    summary="attention of one new token a sequence over a paged cache, with log-sum-exp",
    reference=f"{_FOLDER}.reference:paged_decode",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:paged_decode",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("D", 256, "a row of each split is held in registers"),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:paged_decode",
            requires=(on_backends("cpu"),),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:paged_decode",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", (1, 1, 1, 1, 64, 16)),
        _case("fp32", (3, 123, 9, 3, 64, 16)),
        _case("bf16", (2, 150, 8, 1, 128, 7)),
        _case("bf16", (3, 150, 2, 2, 80, 16), window="yes"),
        _case("fp16", (2, 100, 20, 1, 40, 32), sink="yes"),
        _case("bf16", (7, 90, 4, 2, 96, 16), window="yes", sink="yes"),
        _case("fp32", (1, 300, 1, 1, 256, 16), window="yes", sink="yes"),
        _case("bf16", (0, 16, 2, 1, 64, 16)),
    ),
    peers=("flash_attn", "flashinfer"),
)

_SPLIT_SIGNATURE = (
    dict.fromkeys(("q_ptr", "cache_ptr"), "*bf16")
    | dict.fromkeys(("length_ptr", "table_ptr"), "*i32")
    | dict.fromkeys(("partial_ptr", "partial_lse_ptr"), "*fp32")
    | dict.fromkeys(("q_stride", "q_head_stride", "page_stride", "slot_stride"), "i32")
    | dict.fromkeys(("value_offset", "kv_head_stride", "table_stride"), "i32")
    | dict.fromkeys(("num_heads", "window"), "i32")
    | {"scale_log2": "fp32"}
)
_MERGE_SIGNATURE = (
    dict.fromkeys(("partial_ptr", "partial_lse_ptr", "sink_ptr", "lse_ptr"), "*fp32")
    | {"o_ptr": "*bf16"}
    | dict.fromkeys(("num_heads", "num_splits"), "i32")
)


def _build(unit: str, head_dim: int, tile: Tile) -> Build:
    return Build(
        name=f"{unit} D{head_dim}",
        kernel=f"{_FOLDER}.triton_kernel:paged_decode_kernel",
        signature=_SPLIT_SIGNATURE,
        constexprs={
            "GROUP": 4,
            "ROWS": tile.rows,
            "HEAD_DIM": head_dim,
            "BLOCK_D": block_dim(head_dim),
            "KEYS": tile.keys,
            "PAGE": 16,
            "HAS_WINDOW": True,
            "ALIGNED": True,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        hot=head_dim <= 128,  # no language model of the engine has wider heads
        skip=skipped_outside(unit),
    )


_MERGE = Build(
    name="merge of 32 splits D128",
    kernel=f"{_FOLDER}.triton_kernel:merge_splits_kernel",
    signature=_MERGE_SIGNATURE,
    constexprs={"HEAD_DIM": 128, "BLOCK_D": 128, "SPLITS": 32, "HAS_SINK": True, "ALIGNED": True},
)

BUILDS = (
    *(
        _build(unit, head_dim, tile)
        for unit, of_unit in TILES.items()
        for head_dim, tile in of_unit.items()
    ),
    _MERGE,
)
