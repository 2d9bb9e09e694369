"""The configurations of the sparse attentions that engines run, for each family's tile."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.hardware.traits import DeviceTraits, load_traits
from kernels.offline import TARGETS, Build
from kernels.ops.sparse_mla.tiles import CHUNK, Tile, choose_tile, row_constants

_FLOAT = ("lse_ptr", "sink_ptr")
_INDEX = ("index_ptr", "window_ptr")
_NUMBERS = (
    "q_stride", "q_head_stride", "index_stride", "values_stride", "scale_stride", "tail_stride",
    "window_stride", "window_values_stride", "window_scale_stride", "window_tail_stride",
    "num_heads", "num_rows", "num_window", "num_splits",
)  # fmt: skip


def _signature(group: int, scales: str, output: str) -> dict[str, str]:
    """Types by argument, in the kernel's order; rows are bytes where they have scales."""
    values, scales = ("*u8", scales) if group else ("*bf16", "*bf16")
    pool = {"values_ptr": values, "scale_ptr": scales, "tail_ptr": "*bf16"}
    window = {f"window_{name}": kind for name, kind in pool.items()}
    return (
        {"q_ptr": "*bf16", "o_ptr": output}
        | dict.fromkeys(_FLOAT, "*fp32")
        | {_INDEX[0]: "*i32"}
        | pool
        | {_INDEX[1]: "*i32"}
        | window
        | dict.fromkeys(_NUMBERS, "i32")
        | {"scale_log2": "fp32"}
    )


def _variant(traits: DeviceTraits, group: int) -> tuple[Tile, bool]:
    """What the launcher takes from a device: its tile, and whether it converts e4m3."""
    return choose_tile(traits, 64, 2), group > 0 and traits.fp8_format == "e4m3fn"


def _name(tile: Tile, converts: bool) -> str:
    return f"{tile.heads}x{tile.keys}/{tile.num_warps}{' e4m3' if converts else ''}"


def build(
    name: str,
    *,
    num_values: int,
    num_tail: int,
    group: int,
    is_tail_value: bool,
    has_window: bool = False,
    scales: str = "*fp32",
    output: str = "*bf16",
) -> Iterator[Build]:
    """A configuration at 64 heads or more, once for every tile that a family takes.

    `output` is float32 in decoding, where the splits of a token's rows are merged afterwards.
    """
    variants = {family: _variant(load_traits(family), group) for family in TARGETS}
    for tile, converts in dict.fromkeys(variants.values()):
        rows = row_constants(tile, num_values, num_tail, group, is_tail_value=is_tail_value)
        others = {
            family: f"takes the build {_name(theirs, does)}"
            for family, (theirs, does) in variants.items()
            if (theirs, does) != (tile, converts)
        }
        yield Build(
            name=f"{name} {_name(tile, converts)}",
            kernel="kernels.ops.sparse_mla.triton_kernel:sparse_rows_kernel",
            signature=_signature(group, scales, output),
            constexprs=rows
            | {
                "HAS_WINDOW": has_window,
                "HAS_SINK": has_window,
                "HEADS": tile.heads,
                "KEYS": tile.keys,
                "CHUNK": CHUNK,
                "ALIGNED": True,
                "HAS_E4M3": converts,
            },
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            skip=others,
        )


def merge_build(width: int, splits: int) -> Build:
    """The merge of the parts of a token's rows."""
    return Build(
        name=f"merge {splits} of {width}",
        kernel="kernels.ops.sparse_mla.triton_kernel:merge_splits_kernel",
        signature={
            "part_ptr": "*fp32",
            "part_lse_ptr": "*fp32",
            "o_ptr": "*bf16",
            "lse_ptr": "*fp32",
            "num_heads": "i32",
            "num_splits": "i32",
        },
        constexprs={"OUT": width, "BLOCK_OUT": width, "SPLITS": splits},
    )
