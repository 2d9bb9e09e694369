"""What overlapping would gain and cost on these ranks, from a layer of each kind."""

# N tokens, C channels, H query heads, K key/value heads, D head dim.

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from kernels.collectives.protocol import Communicator
from llm_engine.layers.attention import AttentionSpan, PagedAttention, PagedCache
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.native import NativeAttend, NativeCache
from llm_engine.layers.rotary import Rotary
from llm_engine.layers.step import Attend, Step
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.overlap_blocks import RankUpdates
from llm_engine.parallel.overlap_choice import StepCosts
from llm_engine.parallel.overlap_context import share_rows
from llm_engine.parallel.shares import ranges

CUTS = (1, 2, 4)
_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Probe:
    """Costs, the same on all ranks, and the cuts that keep every bit of a whole step's rows."""

    costs: StepCosts
    exact_cuts: frozenset[int]


class Prober:
    """Runs layers on rows of its own, with a cache of its own: no request is touched.

    Prompts are probed from their start; one that goes on from a long cached prefix spends more on
    attention, so that less of its time is on the wire.
    """

    def __init__(
        self,
        cached: ModelConfig,
        ops: BoundOps,
        rotary: Rotary,
        page_size: int,
        cp: Communicator | None = None,
    ) -> None:
        """`cached` are the sizes of what the rank attends with; `cp` shares rows out, if given."""
        self._config = replace(cached, num_layers=1)
        self._ops, self._rotary, self._page_size, self._cp = ops, rotary, page_size, cp

    def __call__(
        self, updates: RankUpdates, like_C: torch.Tensor, num_tokens: int, world: Communicator
    ) -> Probe:
        """Measure steps of so many tokens; all ranks at once. Shapes: like (C,), a hidden state."""
        generator = torch.Generator().manual_seed(0)
        x_NC = torch.randn(num_tokens, len(like_C), generator=generator).to(like_C.dtype)
        seconds: list[float] = []
        whole: list[torch.Tensor] = []
        is_other: list[float] = []
        for cut in CUTS:
            taken_s, rows = self._layers(updates, x_NC, cut)
            whole = whole or rows
            seconds.append(taken_s)
            same = all(torch.equal(a, b) for a, b in zip(whole, rows, strict=True))
            is_other.append(float(not same))
        wire = [self._exchange_s(x_NC[: num_tokens // part], world) for part in (4, 1)]
        agreed = torch.tensor([*seconds, *is_other, *wire], dtype=torch.float32)
        found: list[float] = world.all_reduce(agreed, reduction="max").tolist()
        bytes_per_token = self._bytes_per_token(x_NC)
        num_cuts = len(CUTS)
        sent = [num_tokens // part * bytes_per_token for part in (4, 1)]
        latency_s, bytes_s = _line(*sent, *found[2 * num_cuts :])
        costs = StepCosts(
            compute_s={-(-num_tokens // c): s / c for c, s in zip(CUTS, found, strict=False)},
            num_layers=updates.num_layers,
            bytes_per_token=bytes_per_token,
            latency_s=latency_s,
            bytes_s=bytes_s,
            exchanges_per_layer=2 if self._cp is None else 1,
        )
        others = found[num_cuts : 2 * num_cuts]
        return Probe(costs, frozenset(c for c, o in zip(CUTS, others, strict=True) if not o))

    def _rows(self, num_tokens: int, num_cuts: int) -> list[range]:
        """The rank's chunks of a step."""
        if self._cp is None:
            return ranges(num_tokens, num_cuts)
        group = self._cp.group
        pieces = [turn[group.rank] for turn in share_rows(num_tokens, group.size, num_cuts)]
        return [range(piece.start, piece.start + piece.num_tokens) for piece in pieces]

    def _bytes_per_token(self, x_NC: torch.Tensor) -> int:
        if self._cp is None:
            return x_NC[:1].nbytes
        return PagedCache.bytes_per_token(self._config, x_NC.dtype)

    def _exchange_s(self, x_NC: torch.Tensor, world: Communicator) -> float:
        """The least seconds of an exchange for these rows, begun together."""
        config, ranks = self._config, self._cp
        if ranks is not None:
            own = len(x_NC) // ranks.group.size
            x_NC = x_NC.new_zeros(own, 2 * config.num_kv_heads * config.head_dim)
        least_s = float("inf")
        for _ in range(_REPEATS + 1):
            x = x_NC.clone()
            world.barrier()
            begin_s = time.perf_counter()
            if ranks is None:
                world.all_reduce(x)
            else:
                ranks.all_gather(x)
            least_s = min(least_s, time.perf_counter() - begin_s)
        return least_s

    def _layers(
        self, updates: RankUpdates, x_NC: torch.Tensor, num_cuts: int
    ) -> tuple[float, list[torch.Tensor]]:
        """Seconds of all layers' computation in chunks, and the updates of those that ran."""
        num_tokens = len(x_NC)
        pages = range(-(-num_tokens // self._page_size))
        cache = self._cache(len(pages), x_NC.dtype)
        chunks = [
            (x_NC[rows.start : rows.stop], self._step(cache, pages, rows))
            for rows in self._rows(num_tokens, num_cuts)
        ]
        total_s = 0.0
        found: list[torch.Tensor] = []
        for layer, count in updates.kinds.items():
            for update in (updates.attention_update, updates.mlp_update):
                parts, taken_s = _timed([(update, layer, x, step) for x, step in chunks])
                found.append(torch.cat(parts))
                total_s += count * taken_s
        return total_s, found

    def _cache(self, num_pages: int, dtype: torch.dtype) -> PagedCache | NativeCache:
        if self._ops.is_native:
            return NativeCache(self._config, num_pages, self._page_size)
        return PagedCache(self._config, num_pages, self._page_size, dtype)

    def _step(self, cache: PagedCache | NativeCache, pages: range, rows: range) -> Step:
        span = AttentionSpan(rows.start, len(rows), pages)
        attention: Attend
        if isinstance(cache, NativeCache):
            attention = NativeAttend(cache, [span], self._rotary)
        else:
            rotation = self._rotary.rotation(torch.arange(rows.start, rows.stop))
            attention = PagedAttention(cache, [span], self._ops, rotation)

        def attend(
            layer: int, q_NHD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor
        ) -> torch.Tensor:
            return attention(0, q_NHD, k_NKD, v_NKD)

        return Step(torch.empty(len(rows), dtype=torch.int64), attend)


Update = Callable[[int, torch.Tensor, Step], torch.Tensor]


def _timed(
    calls: Sequence[tuple[Update, int, torch.Tensor, Step]],
) -> tuple[list[torch.Tensor], float]:
    """What the calls return, and the least seconds that all of them took."""
    least_s = float("inf")
    found: list[torch.Tensor] = []
    for _ in range(_REPEATS):
        begin_s = time.perf_counter()
        found = [update(layer, x_NC, step) for update, layer, x_NC, step in calls]
        least_s = min(least_s, time.perf_counter() - begin_s)
    return found, least_s


def _line(small: int, large: int, small_s: float, large_s: float) -> tuple[float, float]:
    """Latency and rate through two sizes; a rate without end where the larger is as fast."""
    slope = (large_s - small_s) / (large - small)
    if slope <= 0:
        return large_s, float("inf")
    return max(0.0, small_s - slope * small), 1 / slope
