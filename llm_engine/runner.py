"""Device work of one step: tokens in, logits out."""

# N tokens in the step, S rows with logits, C channels, V vocabulary.

from collections.abc import Sequence
from typing import Protocol

import torch

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.cache.storage import PageStorage
from llm_engine.cache.tensor_storage import TensorStorage
from llm_engine.layers.attention import AttentionSpan, PagedAttention, PagedCache
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.native import NativeAttend, NativeCache
from llm_engine.layers.step import Attend, Step
from llm_engine.models.base import CausalModel
from llm_engine.sequence import Chunk


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
        """Allocate the cache for every page of the pool, in the layout of the bound blocks."""
        self._model = model
        self._pool = pool
        self._ops = ops
        self._adapters = adapters
        self.cache: PagedCache | NativeCache
        if ops.is_native:
            self.cache = NativeCache(model.config, pool.num_pages, pool.page_size)
        else:
            self.cache = PagedCache(model.config, pool.num_pages, pool.page_size, dtype)
        self.storages: Sequence[PageStorage] = (
            TensorStorage(self.cache.layers, self.cache.reservations),
        )

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
        step = Step(torch.tensor(token_ids), self._attend(chunks), updates)
        hidden_NC = self._model.hidden(step, self._ops)
        if not rows:
            return None
        if len(rows) < len(token_ids):
            hidden_NC = hidden_NC[rows]
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
        rotation = rotary.rotation(torch.tensor(positions))
        return PagedAttention(self.cache, spans, self._ops, rotation)

    def _span(self, chunk: Chunk) -> AttentionSpan:
        pages = self._pool.table(chunk.seq.seq_id)
        return AttentionSpan(start=chunk.start, num_tokens=chunk.num_tokens, pages=pages)
