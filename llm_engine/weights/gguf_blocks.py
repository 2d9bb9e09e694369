"""GGUF blocks taken apart: integers, scales and minima instead of values.

Source: the block layouts of ggml (ggml-common.h): Q4_0, Q4_1, Q8_0, Q4_K, Q6_K.
"""

# B blocks of all rows, each a run of bytes.

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from llm_engine.weights.checkpoint import BlockWeights

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_NIBBLE = np.uint8(15)
_SIX_BITS = np.uint8(63)


class _Parts(NamedTuple):
    """Of each block: its integers, and the scales and minima of its groups."""

    quants: npt.NDArray[np.uint8] | npt.NDArray[np.int8]
    scales: _Floats
    minima: _Floats | None


class _Format(NamedTuple):
    split: Callable[[_Bytes], _Parts]
    bits: Literal[4, 8]
    group: Literal[16, 32]


def can_split(kind: GGMLQuantizationType) -> bool:
    """Whether `split_blocks` knows this quantisation."""
    return kind in _FORMATS


def split_blocks(rows: _Bytes, kind: GGMLQuantizationType) -> BlockWeights:
    """Rows of blocks as integers with scales. Shapes: rows (N, bytes of a row).

    Numerics: scales and minima are the float32 products that dequantisation takes.
    """
    num_rows = rows.shape[0]
    form = _FORMATS[kind]
    parts = form.split(rows.reshape(-1, GGML_QUANT_SIZES[kind][1]))
    minima = None if parts.minima is None else torch.from_numpy(parts.minima).view(num_rows, -1)
    return BlockWeights(
        quants_NK=torch.from_numpy(parts.quants).view(num_rows, -1),
        scales_NG=torch.from_numpy(parts.scales).view(num_rows, -1),
        minima_NG=minima,
        bits=form.bits,
        group=form.group,
    )


def _halves(blocks: _Bytes, byte: int) -> _Floats:
    """One float16 of each block, at this byte, as float32 (B, 1)."""
    pairs = np.ascontiguousarray(blocks[:, byte : byte + 2])
    return pairs.view(np.float16).astype(np.float32)


def _nibbles(packed: _Bytes) -> _Bytes:
    """Runs of bytes (B, L) as (B, 2L): all low halves of a run, then all high ones."""
    runs = np.ascontiguousarray(packed)
    length = runs.shape[1]
    wide = np.dtype((np.void, length))  # whole runs are copied, not single bytes
    result = np.empty((runs.shape[0], 2), wide)
    result[:, 0] = (runs & _NIBBLE).view(wide)[:, 0]
    result[:, 1] = (runs >> np.uint8(4)).view(wide)[:, 0]
    return result.view(np.uint8)


def _split_q4_0(blocks: _Bytes) -> _Parts:
    scales = _halves(blocks, 0)
    return _Parts(_nibbles(blocks[:, 2:]), scales, scales * np.float32(-8))


def _split_q4_1(blocks: _Bytes) -> _Parts:
    return _Parts(_nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _split_q8_0(blocks: _Bytes) -> _Parts:
    quants = np.ascontiguousarray(blocks[:, 2:]).view(np.int8)
    return _Parts(quants, _halves(blocks, 0), None)


def _split_q4_k(blocks: _Bytes) -> _Parts:
    """Super-blocks of 256: two halves, 8 pairs of 6-bit scale and minimum, 4 runs of 64 nibbles.

    Pairs 0 to 3 lie in the low bits of bytes 0 to 3 and 4 to 7; pairs 4 to 7 have their low four
    bits in bytes 8 to 11 and their high two in the top bits of the others.
    """
    first, second, mixed = (blocks[:, start : start + 4] for start in (4, 8, 12))
    top = np.uint8(0x30)
    factors = np.concatenate([first & _SIX_BITS, (mixed & _NIBBLE) | (first >> 2 & top)], axis=1)
    offsets = np.concatenate([second & _SIX_BITS, (mixed >> 4) | (second >> 2 & top)], axis=1)
    quants = _nibbles(np.ascontiguousarray(blocks[:, 16:]).reshape(-1, 32))
    minima = _halves(blocks, 2) * offsets.astype(np.float32)
    return _Parts(quants, _halves(blocks, 0) * factors.astype(np.float32), -minima)


def _split_q6_k(blocks: _Bytes) -> _Parts:
    """Super-blocks of 256 in two halves of 128, each of 64 low-nibble and 32 high-bit bytes.

    In a half, value 32 i + j has its low bits in nibble i // 2 of byte 32 (i % 2) + j, and its
    high two in bit pair i of high byte j. The scales are 16 int8 factors of the last half-float.
    """
    low = np.ascontiguousarray(blocks[:, :128]).reshape(-1, 64)
    high = np.ascontiguousarray(blocks[:, 128:192]).reshape(-1, 1, 32)
    values = _nibbles(low).reshape(-1, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)
    values |= (high >> shifts & np.uint8(3)) << np.uint8(4)
    factors = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return _Parts(values.view(np.int8) - np.int8(32), _halves(blocks, 208) * factors, None)


_FORMATS: Mapping[GGMLQuantizationType, _Format] = {
    GGMLQuantizationType.Q4_0: _Format(_split_q4_0, 4, 32),
    GGMLQuantizationType.Q4_1: _Format(_split_q4_1, 4, 32),
    GGMLQuantizationType.Q8_0: _Format(_split_q8_0, 8, 32),
    GGMLQuantizationType.Q4_K: _Format(_split_q4_k, 4, 32),
    GGMLQuantizationType.Q6_K: _Format(_split_q6_k, 8, 16),
}
