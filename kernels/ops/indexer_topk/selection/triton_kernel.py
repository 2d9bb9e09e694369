"""Radix selection: the k best of those kept so far and of a run of scores."""

from __future__ import annotations

import triton
import triton.language as tl

# Ordered value of -inf: everything above it is a score.
ORDERED_LOWEST = tl.constexpr(-0x7F800001)
SIGN = tl.constexpr(-0x80000000)
# Taken from it, an index leaves a positive int32, -1 included.
HIGHEST_INDEX = tl.constexpr(0x7FFFFFFE)
# No key: -inf and -1, packed.
EMPTY = tl.constexpr((-0x7F800001 << 32) | 0x7FFFFFFF)


@triton.jit
def ordered(score):
    """Integers that rise as the scores do; its own inverse on their bits."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def pack(value, index):
    """One integer for a score's ordered value and an index: the lower index is the greater."""
    return (value.to(tl.int64) << 32) | (-index + HIGHEST_INDEX).to(tl.int64)


@triton.jit
def load_values(score_ptr, place, num_scores, IS_PACKED: tl.constexpr):
    """Ordered values of scores, or of what is packed; that of -inf outside."""
    inside = place < num_scores
    if IS_PACKED:
        packed = tl.load(score_ptr + place, mask=inside, other=EMPTY)
        return (packed >> 32).to(tl.int32), packed
    else:
        score = tl.load(score_ptr + place, mask=inside, other=float("-inf"))
        return ordered(score), place.to(tl.int64)


@triton.jit
def _counts(
    score_ptr, num_scores, prefix, shift: tl.constexpr, TILE: tl.constexpr, IS_PACKED: tl.constexpr
):
    """How many scores that begin with `prefix` have each next digit."""
    count = tl.zeros([256], tl.int32)
    for start in range(0, num_scores, TILE):
        place = start + tl.arange(0, TILE)
        value, _ = load_values(score_ptr, place, num_scores, IS_PACKED)
        bits = (value ^ SIGN).to(tl.uint32, bitcast=True)
        counted = value > ORDERED_LOWEST
        if shift < 24:
            counted = counted & ((bits >> (shift + 8)) == (prefix >> (shift + 8)))
        count += tl.histogram(((bits >> shift) & 255).to(tl.int32), 256, mask=counted)
    return count


@triton.jit
def _keep(
    score_ptr, best_ptr, candidate_ptr, num_scores, first, threshold, num_equal, kept, equal,
    TILE: tl.constexpr, IS_PACKED: tl.constexpr, HAS_CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy what is above the threshold, and the first `num_equal` at it, in their order."""
    for start in range(0, num_scores, TILE):
        place = start + tl.arange(0, TILE)
        value, packed = load_values(score_ptr, place, num_scores, IS_PACKED)
        is_score = value > ORDERED_LOWEST
        at = (is_score & (value == threshold)).to(tl.int32)
        rank = equal + tl.cumsum(at, axis=0)
        above = is_score & (value > threshold)
        keep = (above | ((at == 1) & (rank <= num_equal))).to(tl.int32)
        target = kept + tl.cumsum(keep, axis=0) - 1
        if not IS_PACKED:
            index = first + place
            if HAS_CANDIDATES:
                block = tl.load(candidate_ptr + index // BLOCK, mask=keep == 1, other=0)
                index = block * BLOCK + index % BLOCK
            packed = pack(value, index)
        tl.store(best_ptr + target, packed, mask=keep == 1)
        kept += tl.sum(keep, axis=0)
        equal += tl.sum(at, axis=0)
    return kept, equal


@triton.jit
def select_kernel(
    score_ptr, bound_ptr, candidate_ptr, old_ptr, best_ptr,
    score_stride, candidate_stride, num_scores, first, num_old, k,
    TILE: tl.constexpr, HAS_CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
    OF_BLOCKS: tl.constexpr,
):  # fmt: skip
    """One program a token: the k best of the old ones and of a run of scores, by position.

    The 32 bits of the k-th score are found a digit of eight at a time, from the highest.
    """
    token = tl.program_id(0).to(tl.int64)
    score_ptr += token * score_stride
    candidate_ptr += token * candidate_stride
    old_ptr += token * k
    best_ptr += token * k
    count_new = num_scores
    if not HAS_CANDIDATES:
        bound = tl.load(bound_ptr + token).to(tl.int32)
        if OF_BLOCKS:
            bound = (bound + BLOCK - 1) // BLOCK
        count_new = tl.minimum(num_scores, tl.maximum(bound - first, 0))
    digit = tl.arange(0, 256)
    zero = tl.full([], 0, tl.int32)
    prefix = tl.full([], 0, tl.uint32)
    need = k
    for step in tl.static_range(4):
        count = _counts(old_ptr, num_old, prefix, 24 - 8 * step, TILE, True)
        count += _counts(score_ptr, count_new, prefix, 24 - 8 * step, TILE, False)
        if step == 0:
            need = tl.minimum(k, tl.sum(count, axis=0))
        reach = tl.cumsum(count, axis=0, reverse=True)
        chosen = tl.max(tl.where(reach >= need, digit, 0), axis=0)
        need -= tl.sum(tl.where(digit > chosen, count, 0), axis=0)
        prefix = prefix | (chosen.to(tl.uint32) << (24 - 8 * step))
    threshold = prefix.to(tl.int32, bitcast=True) ^ SIGN
    kept, equal = _keep(
        old_ptr, best_ptr, candidate_ptr, num_old, first, threshold, need, zero, zero,
        TILE, True, HAS_CANDIDATES, BLOCK,
    )  # fmt: skip
    kept, equal = _keep(
        score_ptr, best_ptr, candidate_ptr, count_new, first, threshold, need, kept, equal,
        TILE, False, HAS_CANDIDATES, BLOCK,
    )  # fmt: skip
    for start in range(kept, k, TILE):
        place = start + tl.arange(0, TILE)
        tl.store(best_ptr + place, tl.full([TILE], EMPTY, tl.int64), mask=place < k)


@triton.jit
def unpack_kernel(packed_ptr, score_ptr, index_ptr, num_values, TILE: tl.constexpr):
    """Scores and indices of packed integers."""
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = place < num_values
    packed = tl.load(packed_ptr + place, mask=inside, other=0)
    bits = (packed >> 32).to(tl.int32)
    score = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    index = (-(packed & 0xFFFFFFFF) + HIGHEST_INDEX).to(tl.int32)
    tl.store(score_ptr + place, score, mask=inside)
    tl.store(index_ptr + place, index, mask=inside)
