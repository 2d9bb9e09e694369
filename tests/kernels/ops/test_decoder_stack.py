"""Whole layers in one native call: the bits of the blocks called one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels.native.build import find_compiler
from kernels.native.library import Pool, library, pool
from kernels.ops.attention_block.native import CACHE_DTYPE, HeadShape, NativeAttentionBlock
from kernels.ops.attention_block.step import PagedStep, TurnTable
from kernels.ops.mlp_block.native import NativeMlpBlock
from kernels.ops.mlp_block.stack import NativeStack
from kernels.ops.packed_gemm.quantised import PackedMatrix
from kernels.ops.packed_gemm.reference import random_matrix

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")

SHAPE = HeadShape(num_heads=4, num_kv_heads=2, head_dim=32, page_size=16, eps=1e-5)
WIDTH, INNER, NUM_PAGES = 96, 160, 64


@dataclass
class Span:
    start: int
    num_tokens: int
    pages: Sequence[int]


STEPS = {
    "one row": [Span(40, 1, range(3))],
    "rows of several": [Span(i, 1, [i, 63 - i, 30]) for i in range(20)],
    "a prompt beside rows": [Span(300, 1, range(20)), Span(0, 150, range(20, 30))],
}


def make_layer(generator: torch.Generator, **options: str) -> Any:
    def matrix(num_rows: int, num_columns: int) -> PackedMatrix:
        return PackedMatrix(
            random_matrix(num_rows, num_columns, generator, **options), None, pool(1)
        )

    norms = 1 + 0.2 * torch.randn(2, WIDTH, generator=generator)
    attention = NativeAttentionBlock(
        SHAPE, norm_C=norms[0], qkv=matrix(8 * 32, WIDTH), out=matrix(WIDTH, 4 * 32)
    )
    mlp = NativeMlpBlock(
        norm_C=norms[1], eps=1e-5, gate_up=matrix(2 * INNER, WIDTH), down=matrix(WIDTH, INNER)
    )
    return attention, mlp


def filled_pages(num_layers: int, generator: torch.Generator) -> torch.Tensor:
    """Caches as if every token were there: words of each head, then a scale for each token."""
    parts = (num_layers, NUM_PAGES, SHAPE.num_kv_heads, 2)
    words = torch.randint(
        -8191, 8192, (*parts, SHAPE.head_dim * SHAPE.page_size), generator=generator
    )
    scales = torch.rand(*parts, SHAPE.page_size, generator=generator) / 8191
    return torch.cat((words.to(CACHE_DTYPE), scales.view(CACHE_DTYPE)), dim=-1)


@pytest.fixture(scope="module")
def layers() -> list[Any]:
    """Five, of several widths: a model's file mixes them."""
    generator = torch.Generator().manual_seed(3)
    narrow, wide = {"minima": "yes"}, {"bits": "8", "group": "16"}
    return [make_layer(generator, **o) for o in (narrow, wide, narrow, narrow, wide)]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("name", STEPS)
def test_one_call_changes_no_bit(layers: list[Any], name: str, num_threads: int) -> None:
    threads, spans = Pool(library(), num_threads), STEPS[name]
    generator = torch.Generator().manual_seed(7)
    num_rows = sum(span.num_tokens for span in spans)
    x_NC = torch.randn(num_rows, WIDTH, generator=generator)
    angles = torch.randn(512, 16, generator=generator)
    step = PagedStep(spans, TurnTable(angles.cos(), angles.sin()))
    filled = filled_pages(len(layers), generator)
    caches, expected_caches = [list(filled.clone()) for _ in range(2)]
    expected_NC = x_NC.clone()
    for (attention, mlp), cache in zip(layers, expected_caches, strict=True):
        attention(expected_NC, cache, step, threads)
        mlp(expected_NC, threads)
    attentions, mlps = zip(*layers, strict=True)
    stack = NativeStack(attentions, mlps, caches)
    for _ in range(3):
        assert torch.equal(stack(x_NC.clone(), step, threads), expected_NC)
    assert torch.equal(torch.stack(caches), torch.stack(expected_caches))
    assert not torch.equal(x_NC, expected_NC)
