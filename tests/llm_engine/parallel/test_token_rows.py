"""Keys moved between caches of the native layout are those that attention would find there."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from kernels.native.build import find_compiler
from kernels.native.library import pool
from kernels.ops.attention_block.native import attend
from kernels.ops.attention_block.step import PagedStep, TurnTable
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.native import NativeCache
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.model_config import ModelConfig, RopeConfig
from llm_engine.parallel.token_rows import token_rows

PAGE, CONTEXT = 16, 64
MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    num_layers=1,
    num_heads=6,
    num_kv_heads=3,
    head_dim=32,
    rms_eps=1e-6,
    max_position=CONTEXT,
    is_tied=False,
    rope=RopeConfig(theta=1e4),
)


def rows_of(pages: list[int], positions: range) -> torch.Tensor:
    return torch.tensor([pages[p // PAGE] * PAGE + p % PAGE for p in positions])


def attended(
    cache: NativeCache, pages: list[int], positions: range, fused_NXD: torch.Tensor
) -> torch.Tensor:
    """Store the tokens' keys and values, and attend."""
    half = torch.arange(16) / 16
    angles = torch.arange(CONTEXT)[:, None] * (1e-4**half)
    step = PagedStep(
        [AttentionSpan(positions.start, len(positions), pages)],
        TurnTable(angles.cos().contiguous(), angles.sin().contiguous()),
    )
    return attend(fused_NXD.clone(), cache.layers[0], cache.heads, step, pool(1))


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("cuts", [(0, 37), (0, 5, 14, 16, 37), (0, 16, 33, 37)])
def test_a_cache_of_fewer_heads_answers_alike(cuts: tuple[int, ...]) -> None:
    """Tokens move in runs that end within pages, two heads of three, to pages elsewhere."""
    generator = torch.Generator().manual_seed(1)
    fused_NXD = torch.randn(38, 12, 32, generator=generator)
    source = NativeCache(MODEL, 5, PAGE)
    here, there = [4, 0, 2], [1, 3, 0]
    attended(source, here, range(37), fused_NXD[:37])
    fewer = replace(MODEL, num_heads=4, num_kv_heads=2)
    target = NativeCache(fewer, 4, PAGE)
    taking, putting = token_rows(source), token_rows(target)
    for start, end in pairwise(cuts):
        run = range(start, end)
        kv = taking.take(0, slice(1, 3), rows_of(here, run))
        assert kv.shape == (2 * len(run), *taking.nothing.shape[1:])
        putting.put(0, slice(0, 2), rows_of(there, run), kv)
    found = attended(target, there, range(37, 38), fused_NXD[37:, [2, 3, 4, 5, 7, 8, 10, 11]])
    expected = attended(source, here, range(37, 38), fused_NXD[37:])
    assert torch.equal(found, expected[:, 2:])


@pytest.mark.parametrize("is_native", [False, True])
def test_what_is_put_is_taken_again(*, is_native: bool) -> None:
    cache: PagedCache | NativeCache = PagedCache(MODEL, 3, PAGE, torch.bfloat16)
    if is_native:
        cache = NativeCache(MODEL, 3, PAGE)
    rows, moves = token_rows(cache), torch.tensor([40, 3, 17])
    width, dtype = rows.nothing.shape[1], rows.nothing.dtype
    kv = torch.randint(0, 99, (2 * 3, width), dtype=torch.uint8).to(dtype)
    rows.put(0, slice(1, 3), moves, kv)
    assert torch.equal(rows.take(0, slice(1, 3), moves), kv)
    others = torch.tensor([row for row in range(3 * PAGE) if row not in (40, 3, 17)])
    assert not rows.take(0, slice(0, 3), others).any()
    assert not rows.take(0, slice(0, 1), moves).any()
