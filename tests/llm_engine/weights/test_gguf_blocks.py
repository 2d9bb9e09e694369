"""Blocks taken apart stand for exactly what the gguf package dequantises."""

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.weights.gguf_blocks import can_split, split_blocks

KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_values_are_those_of_the_gguf_package(name: str, data: st.DataObject) -> None:
    """Any bytes at all: scales that are infinite or no number are left out, others are not."""
    kind = GGMLQuantizationType[name]
    size = GGML_QUANT_SIZES[kind][1]
    num_rows = data.draw(st.integers(1, 5), "rows")
    num_blocks = data.draw(st.integers(1, 4), "blocks")
    seed = data.draw(st.integers(0, 2**32 - 1), "seed")
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (num_rows, num_blocks * size), dtype=np.uint8)
    rows[:, ::size] = data.draw(st.sampled_from([0, 1, 128, 255]), "low byte of the first scale")
    with np.errstate(over="ignore", invalid="ignore"):
        expected = torch.from_numpy(gguf.dequantize(rows, kind))
        actual = split_blocks(rows, kind)
    is_number = expected.isfinite()
    values = actual.dequantised()
    assert torch.equal(values[is_number], expected[is_number])
    assert not values[~is_number].isfinite().any()


@pytest.mark.parametrize("name", KINDS)
def test_integers_are_within_their_bits(name: str, make_blocks: Callable[..., np.ndarray]) -> None:
    blocks = split_blocks(make_blocks(name, 6, 512), GGMLQuantizationType[name])
    low, high = {"Q6_K": (-32, 31), "Q8_0": (-128, 127)}.get(name, (0, 15))
    quants = blocks.quants_NK.int()
    assert (int(quants.min()), int(quants.max())) == (low, high)
    assert blocks.quants_NK.dtype == (torch.uint8 if blocks.bits == 4 else torch.int8)
    assert blocks.scales_NG.shape == (6, 512 // blocks.group)
    assert blocks.scales_NG.dtype == torch.float32
    assert (blocks.minima_NG is None) == (name in ("Q8_0", "Q6_K"))


def test_other_kinds_have_no_packed_form() -> None:
    assert {kind.name for kind in GGMLQuantizationType if can_split(kind)} == set(KINDS)
