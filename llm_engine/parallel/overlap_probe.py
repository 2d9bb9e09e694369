"""What overlapping would gain and cost on these ranks, from a layer of each kind."""

# N tokens, R of them on this rank, C channels, H query heads, K key/value heads, D head dim.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.protocol import Communicator
from llm_engine.layers.attention import PagedAttention, PagedCache
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.native import NativeAttend, NativeCache
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.layers.rotary import Rotary
from llm_engine.layers.step import Attend, Step
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.layout import Phase
from llm_engine.parallel.overlap_blocks import RankUpdates
from llm_engine.parallel.overlap_choice import StepCosts
from llm_engine.parallel.overlap_exchange import ChunkRows, LayerExchange, Update, error_of
from llm_engine.parallel.overlap_wire import measure_wire

CUTS = (1, 2, 4)
_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found, the same on all ranks.

    `costs` and `errors` by the wire's contract: relative errors of what one layer exchanges, 0
    for `exact`. `exact_cuts` keep every bit of a whole step's rows.
    """

    costs: Mapping[Contract, StepCosts]
    errors: Mapping[Contract, float]
    exact_cuts: frozenset[int]


class Prober:
    """Runs layers on rows of its own, with a cache of its own: no request is touched.

    Prompts are probed from their start, and answers on their first page; one that goes on from a
    long cached prefix spends more on attention, so that less of its time is on the wire.
    """

    def __init__(
        self,
        cached: ModelConfig,
        ops: BoundOps,
        rotary: Rotary,
        page_size: int,
        exchange: LayerExchange,
        phase: Phase = "prefill",
    ) -> None:
        """`cached` are the sizes of what the rank attends with; the phase says whose rows."""
        self._config = replace(cached, num_layers=1)
        self._ops, self._rotary, self._page_size = ops, rotary, page_size
        self._exchange, self._phase = exchange, phase

    def __call__(
        self,
        updates: RankUpdates,
        like_C: torch.Tensor,
        num_tokens: int,
        world: Communicator,
        contracts: Sequence[Contract] = ("exact",),
    ) -> Probe:
        """Measure steps of so many rows; all ranks at once. Shapes: like (C,), a hidden state."""
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
        meanwhile = self._computes_meanwhile(updates, x_NC)
        wire = measure_wire(self._exchange, num_tokens, like_C, contracts, world, meanwhile)
        errors = [self._error(updates, x_NC, contract) for contract in contracts]
        found = _slowest(world, seconds, is_other, errors, wire.idle_s, wire.busy_s)
        compute_s = {-(-num_tokens // c): s / c for c, s in zip(CUTS, found[0], strict=True)}
        costs: dict[Contract, StepCosts] = {}
        for index, contract in enumerate(contracts):
            idle, busy = wire.lines(index, *found[3:])
            costs[contract] = StepCosts(
                compute_s=compute_s,
                num_layers=updates.num_layers,
                bytes_per_token=wire.num_bytes[-1] / num_tokens,
                idle=idle,
                busy=busy,
                exchanges_per_layer=1,
            )
        exact_cuts = frozenset(c for c, other in zip(CUTS, found[1], strict=True) if not other)
        return Probe(costs, dict(zip(contracts, found[2], strict=True)), exact_cuts)

    def _computes_meanwhile(self, updates: RankUpdates, x_NC: torch.Tensor) -> Callable[[], object]:
        """A layer of the first of the smallest chunks."""
        cache, pages = self._cache(len(x_NC), x_NC.dtype)
        rows = self._exchange.rows(len(x_NC), CUTS[-1])[0]
        x_RC, step = x_NC[rows.own.start : rows.own.stop], self._step(cache, pages, rows)
        layer = next(iter(updates.kinds))
        hiding = self._exchange.hiding(updates)
        return lambda: [update(layer, x_RC, step) for update in hiding]

    def _error(self, updates: RankUpdates, x_NC: torch.Tensor, contract: Contract) -> float:
        """The largest of a layer of each kind."""
        if contract == "exact":
            return 0.0
        largest = 0.0
        cache, pages = self._cache(len(x_NC), x_NC.dtype)
        (rows,) = self._exchange.rows(len(x_NC), 1)
        x_RC, step = x_NC[rows.own.start : rows.own.stop], self._step(cache, pages, rows)
        for layer in updates.kinds:
            sent = self._exchange.filled(updates, layer, x_RC, step, len(x_NC))
            largest = max(largest, error_of(sent, contract))
        return largest

    def _layers(
        self, updates: RankUpdates, x_NC: torch.Tensor, num_cuts: int
    ) -> tuple[float, list[torch.Tensor]]:
        """Seconds of what all layers compute in chunks, and the updates of those that ran."""
        cache, pages = self._cache(len(x_NC), x_NC.dtype)
        chunks = [
            (x_NC[rows.own.start : rows.own.stop], self._step(cache, pages, rows))
            for rows in self._exchange.rows(len(x_NC), num_cuts)
        ]
        total_s = 0.0
        found: list[torch.Tensor] = []
        for layer, count in updates.kinds.items():
            for update in self._exchange.hiding(updates):
                parts, taken_s = _timed([(update, layer, x, step) for x, step in chunks])
                found.append(torch.cat(parts))
                total_s += count * taken_s
        return total_s, found

    def _cache(self, num_tokens: int, dtype: torch.dtype) -> tuple[PagedCache | NativeCache, range]:
        """A cache for one prompt, or for answers on a page each, and its pages."""
        is_prompt = self._phase == "prefill"
        pages = range(-(-num_tokens // self._page_size) if is_prompt else num_tokens)
        if self._ops.is_native:
            return NativeCache(self._config, len(pages), self._page_size), pages
        return PagedCache(self._config, len(pages), self._page_size, dtype), pages

    def _step(self, cache: PagedCache | NativeCache, pages: range, rows: ChunkRows) -> Step:
        attended = rows.attended
        spans = self._spans(pages, attended)
        attention: Attend
        if isinstance(cache, NativeCache):
            attention = NativeAttend(cache, spans, self._rotary)
        else:
            positions = [place for span in spans for place in range(span.start, span.end)]
            rotation = self._rotary.rotation(torch.tensor(positions))
            attention = PagedAttention.of_spans(cache, spans, self._ops, rotation)
        mine = (self._config.num_heads, self._config.num_kv_heads, self._config.num_kv_heads)

        def attend(
            layer: int, q_RHD: torch.Tensor, k_RKD: torch.Tensor, v_RKD: torch.Tensor
        ) -> torch.Tensor:
            if rows.own == attended:
                return attention(0, q_RHD, k_RKD, v_RKD)
            # Rows of the rank's own heads stand in for those that would arrive from the others.
            order_N = torch.arange(len(attended)) % len(rows.own)
            parts = zip((q_RHD, k_RKD, v_RKD), mine, strict=True)
            heads_RXD = torch.cat([x[:, :count] for x, count in parts], dim=1)
            attention(0, *heads_RXD.index_select(0, order_N).split_with_sizes(mine, 1))
            return q_RHD

        return Step(torch.empty(len(rows.own), dtype=torch.int64), attend)

    def _spans(self, pages: range, attended: range) -> list[AttentionSpan]:
        """Of a prompt's rows, or of one row of each answer, the last of its page."""
        if self._phase == "prefill":
            return [AttentionSpan(attended.start, len(attended), pages)]
        last = self._page_size - 1
        return [AttentionSpan(last, 1, pages[row : row + 1]) for row in attended]


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


def _slowest(world: Communicator, *numbers: Sequence[float]) -> list[list[float]]:
    """The largest of each number over all ranks."""
    flat = torch.tensor([x for some in numbers for x in some], dtype=torch.float32)
    found = world.all_reduce(flat, reduction="max")
    return [part.tolist() for part in found.split([len(some) for some in numbers])]
