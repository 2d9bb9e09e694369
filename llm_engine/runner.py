"""Device work of one step: tokens in, logits out."""

# N tokens in the step, S rows to sample, C channels, V vocabulary.

from collections.abc import Sequence

import torch

from llm_engine.kv_cache import PagePool
from llm_engine.layers.attention import AttentionSpan, PagedAttention, PagedCache
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.models.base import CausalModel
from llm_engine.scheduler import Chunk


class Runner:
    """A model and the memory of its cache; the page pool says where each sequence's pages are."""

    def __init__(
        self, model: CausalModel, pool: PagePool, dtype: torch.dtype, ops: BoundOps
    ) -> None:
        """Allocate the cache for every page of the pool."""
        self._model = model
        self._pool = pool
        self._ops = ops
        self._cache = PagedCache(model.config, pool.num_pages, pool.page_size, dtype)

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> torch.Tensor | None:
        """Compute the chunks and store their keys and values.

        Returns float32 logits (S, V), one row per chunk with `is_last`, in order; None if no
        chunk is a last one.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        sampled_rows: list[int] = []
        for chunk in chunks:
            end = chunk.start + chunk.num_tokens
            token_ids.extend(chunk.seq.token_ids[chunk.start : end])
            positions.extend(range(chunk.start, end))
            if chunk.is_last:
                sampled_rows.append(len(token_ids) - 1)
        ops, spans = self._ops, [self._span(chunk) for chunk in chunks]
        attend = PagedAttention(self._cache, spans, ops)
        ids_N, positions_N = torch.tensor(token_ids), torch.tensor(positions)
        hidden_NC = self._model.hidden(ids_N, positions_N, attend, ops)
        if not sampled_rows:
            return None
        if len(sampled_rows) < len(token_ids):
            hidden_NC = hidden_NC[sampled_rows]
        return self._model.logits(hidden_NC, ops)

    def _span(self, chunk: Chunk) -> AttentionSpan:
        pages = self._pool.table(chunk.seq.seq_id)
        return AttentionSpan(start=chunk.start, num_tokens=chunk.num_tokens, pages=pages)
