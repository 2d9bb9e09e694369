"""Steps of one phase on one rank: rows cut into chunks and shares, computed, sent on."""

# N rows of a chunk on this rank, S rows with logits, C channels, V vocabulary.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import torch

from kernels.collectives.lane import Handle
from kernels.collectives.reduction import piece_sizes
from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.device import upload
from llm_engine.layers.attention import PagedAttention, PagedCache, WindowedSpans
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.native import NativeAttend, NativeCache
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.layers.step import Attend, Step
from llm_engine.models.base import CausalModel
from llm_engine.parallel.adapter_rows import RowPlaces, step_adapters
from llm_engine.parallel.divided_step import DividedStep, attend_to_nothing
from llm_engine.parallel.exchange import HeadExchange, KeyGather
from llm_engine.parallel.overlap_steps import OverlappedSteps, StepPlan, shares_rows
from llm_engine.parallel.rank_ops import RankOps
from llm_engine.parallel.ring_exchange import RingAttention, keys_are_fewer
from llm_engine.parallel.shares import HeadShare, ranges
from llm_engine.parallel.spans import (
    attention_growth,
    between_spans,
    cut_spans,
    shrinking_chunks,
)
from llm_engine.parallel.step_command import StepCommand
from llm_engine.parallel.stripes import owned_rows

_CHUNKS_PER_STAGE = 4
_LEAST_ROWS = 32  # below it a product is bound by its weights, and smaller is not faster


class PhaseSteps:
    """Computes steps in one layout."""

    def __init__(
        self,
        model: CausalModel,
        cache: PagedCache | NativeCache,
        bound: BoundOps,
        ops: RankOps,
        cp_heads: Sequence[HeadShare],
        overlap: OverlappedSteps | None = None,
        adapters: AdapterSet | None = None,
    ) -> None:
        """`cp_heads` are the heads that each cp rank's cache holds; `overlap` cuts steps."""
        self._overlap = overlap
        self._adapters = adapters or AdapterSet([])
        self._model, self._cache, self._bound, self._ops = model, cache, bound, ops
        self._cp_heads = cp_heads
        self._mesh, self._layout = ops.mesh, ops.layout
        self._places = RowPlaces.of(ops.layout, ops.mesh.place)
        self._growth = attention_growth(ops.config)
        self._device = model.rotary.place

    def run(self, command: StepCommand) -> torch.Tensor | None:
        """Logits (S, V) on rank 0 if there are rows for them, None elsewhere."""
        sent: list[Handle[None]] = []
        found: list[torch.Tensor] = []
        chunks = self._chunks(command)
        shared = self._shared_out(command, chunks)
        owned = [runs[self._places.own] for runs in shared]
        wanted = frozenset(command.logit_rows)
        steps = (self._step(command, rows, runs) for rows, runs in zip(chunks, shared, strict=True))
        for own, x_NC in zip(owned, self._hidden(command, steps), strict=True):
            if self._mesh.after is not None:
                sent.append(self._ops.send_on(x_NC))
            else:
                rows = [index for index, row in enumerate(own) if row in wanted]
                found.append(x_NC.index_select(0, self._index(rows)))
        for handle in sent:
            handle.wait()
        return self._logits(command, chunks, found) if command.logit_rows else None

    def renew(self) -> None:
        """Decide again what was decided with ranks that are no longer there."""
        if self._overlap is not None:
            self._overlap.forget()

    def _step(self, command: StepCommand, rows: range, runs: Sequence[Sequence[int]]) -> Step:
        own = runs[self._places.own]
        token_ids_N = self._index([command.token_ids[row] for row in own])
        layout = self._layout
        over_rows = self._bound.over_rows
        adapters = step_adapters(
            self._adapters, command, runs, self._places, over_rows, self._device
        )
        if layout.dp == 1:
            return Step(token_ids_N, self._attend(command.spans, rows, runs), adapters)
        dp, counts = self._mesh.place.dp, tuple(map(len, runs))
        part = _part_rows(command)[dp]
        attend: Attend = attend_to_nothing
        if part:
            of_part = runs[dp * layout.cp : (dp + 1) * layout.cp]
            attend = self._attend(command.spans, part, of_part)
        return DividedStep(
            token_ids_N,
            attend,
            adapters,
            dp_counts=tuple(counts[place] for place in self._places.mlp),
            row_counts=counts,
        )

    def _hidden(self, command: StepCommand, steps: Iterable[Step]) -> Iterator[torch.Tensor]:
        plan = self._plan(command)
        if self._overlap is not None and not plan.is_plain:
            yield from self._overlap.hidden(list(steps), plan)
            return
        for step in steps:
            yield self._model.hidden(step, self._ops)

    def _plan(self, command: StepCommand) -> StepPlan:
        if self._overlap is None:
            return StepPlan()
        return self._overlap.plan(len(command.token_ids))

    def _chunks(self, command: StepCommand) -> list[range]:
        """One chunk; several where exchanges hide, or that shrink where stages work at once."""
        num_stages, num_tokens = self._layout.pp, len(command.token_ids)
        if self._layout.dp > 1:  # cut where rows of all sequences meet, not before
            return [range(num_tokens)]
        if command.phase == "decode":
            # Over stages one piece: bound by its weights, each half takes a stage as long as that.
            return between_spans(command.spans, self._plan(command).num_chunks)
        if num_stages == 1:
            return ranges(num_tokens, self._plan(command).num_chunks)
        most = _CHUNKS_PER_STAGE * num_stages
        return shrinking_chunks(command.spans, most, self._growth, _LEAST_ROWS)

    def _shared_out(
        self, command: StepCommand, chunks: Sequence[range]
    ) -> Sequence[Sequence[Sequence[int]]]:
        """The rows of each chunk on each cp rank; turns alternate where later rows cost more.

        Or those of the cp ranks of each dp part in turn, in the one chunk that there is then.
        """
        if self._layout.dp > 1:
            parts = [self._dealt(command, rows) for rows in _part_rows(command)]
            return [[own for part in parts for own in part]]
        owned: list[Sequence[Sequence[int]]] = []
        for turn, rows in enumerate(chunks):
            own = self._dealt(command, rows)
            is_turned = turn % 2 == 1 and shares_rows(self._layout)
            owned.append(own[::-1] if is_turned else own)
        return owned

    def _dealt(self, command: StepCommand, rows: range) -> Sequence[Sequence[int]]:
        """Some rows of a step as the cp ranks have them."""
        if self._layout.exchange == "ring":
            return owned_rows(command.spans, rows, self._layout.cp)
        runs = ranges(len(rows), self._layout.cp)
        return [range(rows.start + run.start, rows.start + run.stop) for run in runs]

    def _attend(
        self, spans: Sequence[AttentionSpan], rows: range, shared: Sequence[Sequence[int]]
    ) -> Attend:
        """Of a chunk whose rows the cp ranks have as `shared`."""
        if self._layout.cp == 1 or self._layout.exchange == "heads":
            attention = self._whole(cut_spans(spans, rows))
            if self._layout.cp == 1:
                return attention
            counts = piece_sizes(len(rows), self._layout.cp)
            return HeadExchange(attention, self._mesh.cp, self._cp_heads, counts)
        cache = self._cache
        assert isinstance(cache, PagedCache), "gathered keys lie in torch's layout"
        if self._layout.exchange == "ring":
            return self._ring(cache, cut_spans(spans, rows))
        runs = [_as_range(run) for run in shared]
        parts = [span for run in runs for span in cut_spans(spans, run)]
        slots = [slot for span in parts for slot in _slots(span, cache.page_size)]
        own = runs[self._mesh.place.cp]
        inner = self._paged(cache, cut_spans(spans, own)) if own else None
        return KeyGather(inner, self._mesh.cp, cache, self._index(slots))

    def _ring(self, cache: PagedCache, spans: Sequence[AttentionSpan]) -> RingAttention:
        num_heads, cp = len(self._ops.share.heads.queries), self._mesh.cp
        return RingAttention(
            cp,
            cache,
            spans,
            self._bound,
            self._model.rotary.rotation,
            passes_keys=[keys_are_fewer(cache, s, num_heads, cp.group.size) for s in spans],
        )

    def _whole(self, spans: Sequence[AttentionSpan]) -> Attend:
        if isinstance(self._cache, NativeCache):
            return NativeAttend(self._cache, spans, self._model.rotary)
        return self._paged(self._cache, spans)

    def _paged(self, cache: PagedCache, spans: Sequence[AttentionSpan]) -> PagedAttention:
        positions = [p for span in spans for p in range(span.start, span.end)]
        rotation = self._model.rotary.rotation(self._index(positions))
        windows, sinks = self._model.config.windows, self._model.sinks
        # Over ranks all layers keep the same pages: those that a window does not see are skipped.
        windowed = None if windows is None else WindowedSpans(windows, spans)
        return PagedAttention.of_spans(
            cache, spans, self._bound, rotation, windowed=windowed, sinks=sinks
        )

    def _logits(
        self, command: StepCommand, chunks: Sequence[range], found: Sequence[torch.Tensor]
    ) -> torch.Tensor | None:
        mesh, config = self._mesh, self._ops.config
        world = mesh.world.group
        if mesh.after is None:
            x_SC = self._gathered(command, chunks, torch.cat(list(found)))
            logits_SV = self._model.logits(x_SC, self._ops)
            if mesh.before is None:
                return logits_SV if world.rank == 0 else None
            if mesh.place.replica == 0 and mesh.unit.group.rank == 0:
                self._ops.in_lane(mesh.world.send, logits_SV, 0).wait()
        elif world.rank == 0:
            shape = len(command.logit_rows), config.vocab_size
            logits_SV = torch.empty(shape, device=self._device)
            last = world.size - self._layout.stage
            return self._ops.in_lane(mesh.world.receive, logits_SV, last).wait()
        return None

    def _gathered(
        self, command: StepCommand, chunks: Sequence[range], x_NC: torch.Tensor
    ) -> torch.Tensor:
        """The rows with logits of all ranks that share rows, in the order of the step."""
        ranks = self._mesh.rows
        if ranks.group.size == 1:
            return x_NC
        owned, wanted = self._shared_out(command, chunks), frozenset(command.logit_rows)
        order = [
            row
            for rank in range(ranks.group.size)
            for runs in owned
            for row in runs[rank]
            if row in wanted
        ]
        restored = sorted(range(len(order)), key=order.__getitem__)
        return ranks.all_gather(x_NC).index_select(0, self._index(restored))

    def _index(self, values: Sequence[int]) -> torch.Tensor:
        """Numbers that the host knows, where the rows are."""
        return upload(values, torch.int64, self._device)


def _part_rows(command: StepCommand) -> list[range]:
    """The rows of each dp part."""
    bounds = [0, *accumulate(command.part_rows)]
    return [range(start, end) for start, end in pairwise(bounds)]


def _as_range(rows: Sequence[int]) -> range:
    """Neighbouring rows as a range."""
    return range(rows[0], rows[-1] + 1) if rows else range(0)


def _slots(span: AttentionSpan, page_size: int) -> list[int]:
    """Where a span's tokens lie in a layer's cache, page after page."""
    pages = span.pages
    return [
        pages[place // page_size] * page_size + place % page_size
        for place in range(span.start, span.end)
    ]
