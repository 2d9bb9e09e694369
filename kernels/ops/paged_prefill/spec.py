"""Prefill over pages: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.ops.full_attention.tiles import Tile, block_dim, skipped_outside
from kernels.ops.paged_prefill.tiles import TILES
from kernels.requirements import at_most, dtype_in, on_backends, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.paged_prefill"


def _bytes(case: Case) -> float:
    """Reads q and the cached rows, writes o and the log-sum-exp."""
    sizes = case.sizes
    queries = sizes["T"] * sizes["H"]
    cached = 2.0 * sizes["S"] * sizes["K"] * sizes["D"]
    return (2.0 * queries * sizes["D"] + cached) * ITEM_BYTES[case.dtype] + 4.0 * queries


def _flops(case: Case) -> float:
    """Two products of a query with the keys it sees: all but, on average, half of the new ones."""
    sizes = case.sizes
    seen = max(sizes["S"] - (sizes["T"] - 1) / 2, 0.0)
    return 4.0 * sizes["T"] * seen * sizes["H"] * sizes["D"]


def _case(dtype: str, sizes: tuple[int, int, int, int, int, int], **options: str) -> Case:
    names = ("T", "S", "H", "K", "D", "page")
    return Case(dtype=dtype, sizes=dict(zip(names, sizes, strict=True)), options=options)


SPEC = OpSpec(
    name="paged_prefill",
    summary="causal attention of new tokens over a paged cache, with log-sum-exp",
    reference=f"{_FOLDER}.reference:paged_prefill",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:paged_prefill",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("D", 256, "a tile of rows is held in registers"),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:paged_prefill",
            requires=(on_backends("cpu"),),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:paged_prefill",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", (1, 1, 1, 1, 64, 16)),
        _case("fp32", (123, 123, 3, 1, 64, 16)),
        _case("bf16", (7, 100, 4, 2, 128, 16)),
        _case("bf16", (70, 150, 2, 2, 80, 7), window="yes"),
        _case("fp16", (40, 123, 6, 3, 40, 32), sink="yes"),
        _case("bf16", (33, 90, 2, 1, 96, 16), window="yes", sink="yes"),
        _case("fp32", (5, 77, 1, 1, 256, 16), window="yes", sink="yes"),
        _case("bf16", (0, 16, 2, 1, 64, 16)),
    ),
    peers=("flash_attn", "flashinfer"),
)

_SIGNATURE = (
    dict.fromkeys(("q_ptr", "cache_ptr", "o_ptr"), "*bf16")
    | dict.fromkeys(("cu_ptr", "length_ptr", "table_ptr"), "*i32")
    | dict.fromkeys(("sink_ptr", "lse_ptr"), "*fp32")
    | dict.fromkeys(("q_stride", "q_head_stride", "page_stride", "slot_stride"), "i32")
    | dict.fromkeys(("value_offset", "kv_head_stride", "table_stride"), "i32")
    | dict.fromkeys(("num_sequences", "num_heads", "window"), "i32")
    | {"scale_log2": "fp32"}
)


def _build(unit: str, head_dim: int, tile: Tile, *, has_window: bool) -> Build:
    return Build(
        name=f"{unit} D{head_dim}" + (" window sink" if has_window else ""),
        kernel=f"{_FOLDER}.triton_kernel:paged_prefill_kernel",
        signature=_SIGNATURE,
        constexprs={
            "GROUP": 4,
            "HEAD_DIM": head_dim,
            "BLOCK_D": block_dim(head_dim),
            "ROWS": tile.rows,
            "KEYS": tile.keys,
            "COLUMNS": block_dim(head_dim) // tile.parts,
            "PAGE": 16,
            "HAS_WINDOW": has_window,
            "HAS_SINK": has_window,
            "ALIGNED": True,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        hot=head_dim <= 128,  # no language model of the engine has wider heads
        skip=skipped_outside(unit),
    )


BUILDS = tuple(
    _build(unit, head_dim, tile, has_window=has_window)
    for unit, of_unit in TILES.items()
    for head_dim, tile in of_unit.items()
    for has_window in (False, True)
    if not has_window or head_dim == 128
)
