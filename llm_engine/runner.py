"""Device work of one step: tokens in, logits out."""

# N tokens in the step, S rows with logits, C channels, V vocabulary.

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.cache.storage import PageStorage
from llm_engine.cache.tensor_storage import GroupedStorage, TensorStorage
from llm_engine.device import upload
from llm_engine.layers.attention import PagedAttention, PagedCache, WindowedSpans
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.native import NativeAttend, NativeCache
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.layers.step import Attend, Step
from llm_engine.models.base import CausalModel
from llm_engine.sequence import Chunk

T = TypeVar("T")


class StepRunner(Protocol):
    """What computes an engine's steps, alone or with other ranks."""

    @property
    def storages(self) -> Sequence[PageStorage]:
        """The contents of the cache's pages, in each of its parts."""
        ...

    def run(self, chunks: Sequence[Chunk]) -> torch.Tensor | None:
        """Compute the chunks and store their keys and values.

        Returns float32 logits (S, V), for the last `num_logits` rows of each chunk, in order;
        None if there is no such row.
        """
        ...

    def flush(self) -> None:
        """Let what was asked of the storage take effect everywhere, without a step."""
        ...

    def rejoin(self) -> None:
        """Meet ranks that were started anew and load; all caches are empty then."""
        ...


class Runner:
    """A model and the memory of its cache; the page pool says where each sequence's pages are."""

    def __init__(
        self,
        model: CausalModel,
        pool: SequenceCache,
        dtype: torch.dtype,
        ops: BoundOps,
        adapters: AdapterSet | None = None,
    ) -> None:
        """Allocate the cache for every page of the pool, in the layout of the bound blocks.

        It lies on the device of the model's weights.
        """
        self._model = model
        self._pool = pool
        self._ops = ops
        self._adapters = adapters
        self._window_group = pool.layout.window_group
        group_of = [pool.layout.group_of(layer) for layer in range(model.config.num_layers)]
        self.cache: PagedCache | NativeCache
        if ops.is_native:
            self.cache = NativeCache(model.config, pool.num_pages, pool.page_size)
        else:
            num_pages = [pool.pages_by_group[group] for group in group_of]
            place = model.rotary.place
            self.cache = PagedCache(model.config, num_pages, pool.page_size, dtype, place=place)
        self.storages: Sequence[PageStorage] = (self._storage(group_of),)

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> torch.Tensor | None:
        """See `StepRunner`."""
        token_ids: list[int] = []
        rows: list[int] = []
        for chunk in chunks:
            token_ids.extend(chunk.token_ids)
            rows.extend(range(len(token_ids) - chunk.num_logits, len(token_ids)))
        updates = None
        if self._adapters is not None:
            uses = [(chunk.seq.adapter_id, chunk.num_tokens) for chunk in chunks]
            updates = self._adapters.for_step(uses, self._ops.over_rows)
        place = self._model.rotary.place
        step = Step(upload(token_ids, torch.int64, place), self._attend(chunks), updates)
        hidden_NC = self._model.hidden(step, self._ops)
        if not rows:
            return None
        if len(rows) < len(token_ids):
            hidden_NC = hidden_NC.index_select(0, upload(rows, torch.int64, place))
        return self._model.logits(hidden_NC, self._ops)

    def flush(self) -> None:
        """Nothing waits here."""

    def rejoin(self) -> None:
        """There is nobody to meet."""

    def _attend(self, chunks: Sequence[Chunk]) -> Attend:
        spans = [self._span(chunk) for chunk in chunks]
        rotary = self._model.rotary
        if isinstance(self.cache, NativeCache):
            return NativeAttend(self.cache, spans, rotary)
        positions = [p for span in spans for p in range(span.start, span.end)]
        rotation = rotary.rotation(upload(positions, torch.int64, rotary.place))
        windows, windowed = self._model.config.windows, None
        if self._window_group is not None and windows is not None:
            found = [self._span(chunk, self._window_group) for chunk in chunks]
            windowed = WindowedSpans(windows, found)
            if self._window_group == 0:
                spans = []  # of layers that see everything, of which there are none
        sinks = self._model.sinks
        return PagedAttention.of_spans(
            self.cache, spans, self._ops, rotation, windowed=windowed, sinks=sinks
        )

    def _span(self, chunk: Chunk, group: int = 0) -> AttentionSpan:
        pages = self._pool.table(chunk.seq.seq_id, group)
        return AttentionSpan(start=chunk.start, num_tokens=chunk.num_tokens, pages=pages)

    def _storage(self, group_of: Sequence[int]) -> PageStorage:
        """The pages of every group, over the layers that are in it."""

        def of_group(items: Sequence[T], group: int) -> list[T]:
            return [item for item, own in zip(items, group_of, strict=True) if own == group]

        layers = self.cache.layers
        # On a device memory is not given back.
        reservations = self.cache.reservations or [None] * len(layers)
        return GroupedStorage(
            [
                TensorStorage(
                    of_group(layers, group),
                    [held for held in of_group(reservations, group) if held is not None],
                )
                for group in range(len(self._pool.layout.groups))
            ]
        )
