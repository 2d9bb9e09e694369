"""Keys find the ranks that need them, from any division of layers and heads to any other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from llm_engine.layers.attention import PagedCache
from llm_engine.model_config import ModelConfig, RopeConfig
from llm_engine.parallel.key_moves import Holding, KeyMoves
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.shares import cached_heads, phase_share

PAGE, NUM_PAGES = 2, 3


@dataclass(frozen=True)
class _Group:
    rank: int
    size: int


class _Exchange:
    """All-to-all between threads that stand for ranks; counts what crosses from rank to rank."""

    def __init__(self, size: int) -> None:
        self.meet = threading.Barrier(size, timeout=10)
        self.parts: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self.crossed = [0] * size


class _Rank:
    def __init__(self, exchange: _Exchange, rank: int, size: int) -> None:
        self.group = _Group(rank, size)
        self._exchange = exchange

    def all_to_all(self, x: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
        rank = self.group.rank
        self._exchange.parts[rank] = list(x.split(list(sizes)))
        self._exchange.crossed[rank] += x.numel() - self._exchange.parts[rank][rank].numel()
        self._exchange.meet.wait()
        mine = [parts[rank] for parts in self._exchange.parts]
        found = torch.cat(mine), [len(part) for part in mine]
        self._exchange.meet.wait()
        return found


def model(num_layers: int, num_heads: int, num_kv_heads: int) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=4,
        rms_eps=1e-6,
        max_position=64,
        is_tied=False,
        rope=RopeConfig(theta=1e4),
    )


def cache_of(config: ModelConfig, held: Holding) -> PagedCache:
    own = replace(config, num_layers=len(held.layers), num_kv_heads=len(held.heads))
    return PagedCache(own, NUM_PAGES, PAGE, torch.float32)


def filled(cache: PagedCache, held: Holding, whole: torch.Tensor) -> None:
    """The rank's part of a cache (L, S, 2, K, D) of all layers, rows and heads."""
    for index, layer in enumerate(held.layers):
        rows = cache.layers[index].flatten(0, 1)
        rows.copy_(whole[layer][:, :, held.heads.start : held.heads.stop])


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("pp2->tp2", (3, 4, 2)),
        ("pp3->tp3", (7, 6, 3)),
        ("pp2,tp2->tp4", (4, 8, 4)),
        ("pp2,tp2->tp4", (3, 8, 1)),
        ("pp2,cp2->tp4", (5, 8, 2)),
        ("pp2,tp3->tp6", (2, 12, 6)),
    ],
)
@pytest.mark.parametrize("is_back", [False, True])
def test_moved_keys_are_those_of_the_model(
    text: str, sizes: tuple[int, int, int], is_back: bool
) -> None:
    config, layouts = model(*sizes), PhaseLayouts.parse(text)
    sources, targets = (
        [
            Holding(cached_heads(config, layout, r).kv, phase_share(config, layout, r).layers)
            for r in range(layouts.num_ranks)
        ]
        for layout in (layouts.prefill, layouts.decode)
    )
    if is_back:
        sources, targets = targets, sources
    num_rows = NUM_PAGES * PAGE
    whole = torch.randn(config.num_layers, num_rows, 2, config.num_kv_heads, config.head_dim)
    source_rows, target_rows = [4, 0, 1], [2, 5, 3]
    exchange = _Exchange(layouts.num_ranks)
    caches = [cache_of(config, held) for held in targets]

    def work(rank: int) -> None:
        source = cache_of(config, sources[rank])
        filled(source, sources[rank], whole)
        comm = _Rank(exchange, rank, layouts.num_ranks)
        KeyMoves(comm, sources, source, targets, caches[rank])(source_rows, target_rows)  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(layouts.num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for held, cache in zip(targets, caches, strict=True):
        expected = cache_of(config, held)
        moved = torch.zeros_like(whole)
        moved[:, target_rows] = whole[:, source_rows]
        filled(expected, held, moved)
        for ours, theirs in zip(cache.layers, expected.layers, strict=True):
            assert torch.equal(ours, theirs)
    one_kv_copies = 2 * config.head_dim * len(source_rows)
    needed = sum(len(held.heads) * len(held.layers) for held in targets) * one_kv_copies
    assert sum(exchange.crossed) <= needed  # nothing is sent that nobody keeps
