"""The configurations of the indexer's kernels that engines run, for each family's tile."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.hardware.traits import load_traits
from kernels.offline import TARGETS, Build
from kernels.ops.indexer_topk.tiles import (
    SELECT_TILE,
    SELECT_WARPS,
    score_constants,
    score_tile,
)

_FOLDER = "kernels.ops.indexer_topk"
_WIDTH = 128
_POINTERS = {
    "q_ptr": "*bf16",
    "weight_ptr": "*fp32",
    "keys_ptr": "*bf16",
    "scale_ptr": "*fp32",
    "table_ptr": "*i32",
    "sequence_ptr": "*i32",
    "bound_ptr": "*i32",
    "candidate_ptr": "*i32",
    "score_ptr": "*fp32",
}
_NUMBERS = (
    "q_stride", "q_head_stride", "weight_stride", "key_stride", "table_stride", "candidate_stride",
    "score_stride", "first", "num_positions", "num_tokens", "num_heads", "num_keys", "tiles_each",
    "page_size",
)  # fmt: skip
_SELECT = {
    "score_ptr": "*fp32",
    "bound_ptr": "*i32",
    "candidate_ptr": "*i32",
    "old_ptr": "*i64",
    "best_ptr": "*i64",
    **dict.fromkeys(
        ("score_stride", "candidate_stride", "num_scores", "first", "num_old", "k"), "i32"
    ),
}


def builds() -> tuple[Build, ...]:
    """Scores in prefill and decoding, of all keys and of candidates, and the selection."""
    return (
        *_scores("H64 D128 bf16", 64, is_fp8=False),
        *_scores("H64 D128 fp8", 64, is_fp8=True),
        *_scores("H32 D128 fp8 paged", 32, is_fp8=True, has_table=True),
        *_scores("H32 D128 fp8 candidates", 32, is_fp8=True, has_candidates=True),
        *_scores("H32 D128 fp8 blocks", 32, is_fp8=True, of_blocks=True),
        _select(),
    )


def _scores(
    name: str,
    num_heads: int,
    *,
    is_fp8: bool,
    has_table: bool = False,
    has_candidates: bool = False,
    of_blocks: bool = False,
) -> Iterator[Build]:
    """One build for every tile and decoding that a family takes."""
    is_shared = not (has_table or has_candidates)
    variants = {
        family: (score_tile(traits, num_heads, 2, is_shared=is_shared), converts)
        for family in TARGETS
        for traits in (load_traits(family),)
        for converts in (is_fp8 and traits.fp8_format == "e4m3fn",)
    }
    for tile, converts in dict.fromkeys(variants.values()):
        decoding = "e4m3" if converts else "bits" if is_fp8 else "as is"
        yield Build(
            name=f"scores {name} {tile.lines}x{tile.keys}/{tile.num_stages} {decoding}",
            kernel=f"{_FOLDER}.triton_kernel:index_scores_kernel",
            signature=_POINTERS
            | ({"keys_ptr": "*u8"} if is_fp8 else {})
            | dict.fromkeys(_NUMBERS, "i32")
            | {"scale": "fp32"},
            constexprs=score_constants(tile, _WIDTH, num_heads)
            | {
                "HAS_TABLE": has_table,
                "HAS_SCALE": is_fp8,
                "HAS_CANDIDATES": has_candidates,
                "BLOCK": 8,
                "OF_BLOCKS": of_blocks,
                "HAS_E4M3": converts,
            },
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            skip={
                family: "takes the build of another tile or decoding"
                for family, variant in variants.items()
                if variant != (tile, converts)
            },
        )


def _select() -> Build:
    return Build(
        name="select",
        kernel=f"{_FOLDER}.selection.triton_kernel:select_kernel",
        signature=_SELECT,
        constexprs={
            "TILE": SELECT_TILE,
            "HAS_CANDIDATES": False,
            "BLOCK": 8,
            "OF_BLOCKS": False,
        },
        num_warps=SELECT_WARPS,
    )
