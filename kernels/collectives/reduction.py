"""Adding what ranks hold: in the order of the ranks, in float32, rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.calls import Reduction
from kernels.native.library import build_problem
from kernels.native.sums import FLOAT_KINDS, add_in_order

# Elements at a time: the float32 sum of a block stays in the second-level cache.
BLOCK = 1 << 16


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """What a sum of `dtype` is kept in until it is rounded."""
    return dtype if dtype == torch.int64 else torch.float32


def combine_twice(
    out_N: torch.Tensor,
    copy_N: torch.Tensor,
    parts: Sequence[torch.Tensor],
    reduction: Reduction,
) -> None:
    """`combine_into`, and the same values to `copy`, which may be one of the parts."""
    if reduction == "sum" and is_native(out_N):
        add_in_order(parts, out_N, copy_N)
    else:
        combine_into(out_N, parts, reduction)
        copy_N.copy_(out_N)


def combine_into(out_N: torch.Tensor, parts: Sequence[torch.Tensor], reduction: Reduction) -> None:
    """out = parts[0] + parts[1] + ... , in this order; or their maximum.

    Shapes: every part and `out` (N,), of one dtype, contiguous; `out` may be one of the parts.
    Numerics: ((p0 + p1) + p2) + ... in float32 and one rounding to the dtype; whole numbers in
    int64. Elements do not meet, so a cut message gives the same bits as a whole one.
    """
    if len(parts) == 1:
        if out_N is not parts[0]:
            out_N.copy_(parts[0])
    elif reduction == "max":
        largest_N = torch.maximum(parts[0], parts[1])
        for part_N in parts[2:]:
            torch.maximum(largest_N, part_N, out=largest_N)
        out_N.copy_(largest_N)
    elif len(parts) == 2:
        # torch adds low-precision pairs in float32 and rounds once: the same bits, one pass.
        torch.add(parts[0], parts[1], out=out_N)
    elif is_native(out_N):
        add_in_order(parts, out_N)
    else:
        _sum_blocks(out_N, parts)


def warm_up() -> None:
    """Build or load the native sums now, where no other rank waits for it."""
    build_problem()


def is_native(x_N: torch.Tensor) -> bool:
    """Whether the native sums, which give the same bits, take these values."""
    return x_N.device.type == "cpu" and x_N.dtype in FLOAT_KINDS and build_problem() is None


def _sum_blocks(out_N: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    dtype = accumulator_dtype(out_N.dtype)
    size = BLOCK if out_N.device.type == "cpu" else len(out_N)
    for begin in range(0, len(out_N), size):
        blocks = [part_N[begin : begin + size] for part_N in parts]
        total_B = torch.add(blocks[0].to(dtype), blocks[1])
        for block_B in blocks[2:]:
            total_B.add_(block_B)
        out_N[begin : begin + size].copy_(total_B)


def extend(partial_N: torch.Tensor, part_N: torch.Tensor, reduction: Reduction) -> None:
    """The next rank's values joined to the running result of the ranks before, in place.

    Shapes: both (N,); `partial` in `accumulator_dtype`.
    """
    if reduction == "max":
        torch.maximum(partial_N, part_N.to(partial_N.dtype), out=partial_N)
    else:
        partial_N.add_(part_N)


def piece_sizes(count: int, num_pieces: int) -> list[int]:
    """Sizes of nearly equal pieces; the first ones take what does not divide."""
    whole, rest = divmod(count, num_pieces)
    return [whole + (index < rest) for index in range(num_pieces)]


def cut(x_N: torch.Tensor, num_pieces: int) -> list[torch.Tensor]:
    """Nearly equal pieces of x, as views."""
    return list(x_N.split(piece_sizes(len(x_N), num_pieces)))


def reference_all_reduce(
    shards: Sequence[torch.Tensor], reduction: Reduction = "sum"
) -> list[torch.Tensor]:
    """The `exact` result for every rank, from the shards of all, in one process."""
    dtype = accumulator_dtype(shards[0].dtype)
    total = shards[0].to(dtype, copy=True)
    for shard in shards[1:]:
        extend(total, shard.to(dtype), reduction)
    return [total.to(shards[0].dtype) for _ in shards]


def reference_reduce_scatter(
    shards: Sequence[torch.Tensor], sizes: Sequence[int], reduction: Reduction = "sum"
) -> list[torch.Tensor]:
    """Rank r's rows of the `exact` sum, for every r."""
    total = reference_all_reduce(shards, reduction)[0]
    return [rows.clone() for rows in total.split(list(sizes))]
