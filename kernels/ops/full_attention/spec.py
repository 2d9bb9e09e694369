"""Full attention: what runs it where, and what it costs."""

from __future__ import annotations

from kernels.offline import Build
from kernels.ops.full_attention.tiles import TILES, Tile, block_dim, skipped_outside
from kernels.requirements import at_most, dtype_in, on_backends, through_triton
from kernels.spec import ITEM_BYTES, Case, Implementation, OpSpec, Tier

_FOLDER = "kernels.ops.full_attention"


def _bytes(case: Case) -> float:
    """Reads q, k and v, writes o and the log-sum-exp."""
    queries, keys, heads = case.sizes["S"], case.sizes["N"], case.sizes["H"]
    rows = 2.0 * (queries + keys) * heads * case.sizes["D"]
    return rows * ITEM_BYTES[case.dtype] + 4.0 * queries * heads


def _flops(case: Case) -> float:
    """Two products of every query with every key."""
    return 4.0 * case.sizes["S"] * case.sizes["N"] * case.sizes["H"] * case.sizes["D"]


def _case(dtype: str, queries: int, keys: int, heads: int, head_dim: int) -> Case:
    return Case(dtype=dtype, sizes={"S": queries, "N": keys, "H": heads, "D": head_dim})


SPEC = OpSpec(
    name="full_attention",
    summary="attention of every query to every key, with log-sum-exp",
    reference=f"{_FOLDER}.reference:full_attention",
    example=f"{_FOLDER}.reference:example",
    implementations=(
        Implementation(
            name="triton",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.triton_kernel:full_attention",
            requires=(
                through_triton(),
                dtype_in("fp32", "bf16", "fp16"),
                at_most("D", 256, "a tile of rows is held in registers"),
            ),
        ),
        Implementation(
            name="cpu",
            tier=Tier.FUSED,
            entry=f"{_FOLDER}.cpu:full_attention",
            requires=(on_backends("cpu"),),
            evidence="run and compared with the reference on CPU",
        ),
        Implementation(
            name="torch",
            tier=Tier.GENERIC,
            entry=f"{_FOLDER}.reference:full_attention",
            evidence="the reference itself",
        ),
    ),
    read_write_bytes=_bytes,
    flops=_flops,
    cases=(
        _case("fp32", 1, 1, 1, 64),
        _case("fp32", 123, 77, 3, 40),
        _case("bf16", 70, 129, 2, 64),
        _case("fp16", 33, 64, 2, 80),
        _case("bf16", 7, 40, 5, 96),
        _case("bf16", 65, 33, 1, 128),
        _case("fp32", 5, 50, 1, 256),
        _case("fp32", 0, 7, 2, 64),
    ),
    peers=("flash_attn", "sageattention"),
)

_SIGNATURE = (
    dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "o_ptr"), "*bf16")
    | {"lse_ptr": "*fp32"}
    | dict.fromkeys(("q_stride", "q_head_stride", "k_stride", "k_head_stride"), "i32")
    | dict.fromkeys(("v_stride", "v_head_stride"), "i32")
    | dict.fromkeys(("num_queries", "num_keys", "num_heads"), "i32")
    | {"scale_log2": "fp32"}
)


def _build(unit: str, head_dim: int, tile: Tile) -> Build:
    return Build(
        name=f"{unit} D{head_dim}",
        kernel=f"{_FOLDER}.triton_kernel:full_attention_kernel",
        signature=_SIGNATURE,
        constexprs={
            "HEAD_DIM": head_dim,
            "BLOCK_D": block_dim(head_dim),
            "ROWS": tile.rows,
            "KEYS": tile.keys,
            "COLUMNS": block_dim(head_dim) // tile.parts,
            "ALIGNED": True,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        skip=skipped_outside(unit),
    )


BUILDS = tuple(
    _build(unit, head_dim, tile)
    for unit, of_unit in TILES.items()
    for head_dim, tile in of_unit.items()
)
