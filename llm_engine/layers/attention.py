"""Attention over the paged cache for one step: single-token rows together, then the chunks."""

# N tokens in the step, B sequences (in a step: those that decode), Q tokens of all chunks,
# H query heads, K key/value heads, D head dim, L layers, P pages in all, M pages of the longest
# row, Z page size.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Protocol

import torch

from kernels.ops.rotary_insert import Insertion, Rotation
from llm_engine.layers.single_decode import SingleDecode
from llm_engine.memory.lazy_tensor import LazyTensor
from llm_engine.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Tokens [start, start + num_tokens) of one sequence, and the pages of the sequence."""

    start: int
    num_tokens: int
    pages: Sequence[int]

    @property
    def end(self) -> int:
        """Tokens in the cache once the span is stored."""
        return self.start + self.num_tokens


class PagedCache:
    """Keys and values of all layers: (L, P, Z, 2, K, D), so a page is one block of memory."""

    def __init__(
        self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype
    ) -> None:
        """Reserve all pages, zeroed: masked positions must hold finite numbers."""
        shape = (num_pages, page_size, 2, config.num_kv_heads, config.head_dim)
        self.reservations = [LazyTensor(shape, dtype) for _ in range(config.num_layers)]
        self.layers = [reserved.tensor for reserved in self.reservations]
        self.page_size = page_size
        self.head_dim = config.head_dim

    @staticmethod
    def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes that one token takes in all layers."""
        per_layer = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
        return config.num_layers * per_layer


class AttentionOps(Protocol):
    """The ops that attention calls, as `llm_engine.layers.bound_ops.BoundOps` has them."""

    @property
    def rotary_insert(self) -> Callable[..., Any]:
        """As `kernels.ops.rotary_insert`."""
        ...

    @property
    def paged_prefill(self) -> Callable[..., Any]:
        """As `kernels.ops.paged_prefill`."""
        ...

    @property
    def paged_decode(self) -> Callable[..., Any]:
        """As `kernels.ops.paged_decode`."""
        ...

    @property
    def single_decode(self) -> type[SingleDecode] | None:
        """What decodes one sequence alone, if not `paged_decode`."""
        ...


class PagedAttention:
    """One step's attention: built once from its spans, then called for each layer.

    The leading spans of one token are decoded together; a later one counts as a chunk.
    """

    def __init__(
        self,
        cache: PagedCache,
        spans: Sequence[AttentionSpan],
        ops: AttentionOps,
        rotation: Rotation,
    ) -> None:
        """Prepare slots, lengths and page tables, which all layers share."""
        self._rotation = rotation
        self._layers = cache.layers
        self._page_size = cache.page_size
        self._ops = ops
        self._scale = cache.head_dim**-0.5
        slots = [slot for span in spans for slot in self._slots(span)]
        self._insertion = Insertion(slots=torch.tensor(slots, dtype=torch.int64))
        decodes = list(takewhile(lambda span: span.num_tokens == 1, spans))
        chunks = spans[len(decodes) :]
        self._num_decodes = len(decodes)
        self._decode_pages = self._pages(decodes) if decodes else None
        self._single: SingleDecode | None = None
        if len(decodes) == 1 and ops.single_decode is not None:
            (span,) = decodes
            pages = span.pages[: -(-span.end // self._page_size)]
            self._single = ops.single_decode(pages, span.end)
        self._chunk_pages = self._pages(chunks) if chunks else None
        bounds = [0, *accumulate(span.num_tokens for span in chunks)]
        self._chunk_bounds = torch.tensor(bounds, dtype=torch.int32)

    def __call__(
        self,
        layer: int,
        q_NHD: torch.Tensor,
        k_NKD: torch.Tensor,
        v_NKD: torch.Tensor,
    ) -> torch.Tensor:
        """Turn, store, then attend; see `llm_engine.layers.step.Attend`."""
        return self.attend(layer, self.store(layer, q_NHD, k_NKD, v_NKD))

    @property
    def slots(self) -> torch.Tensor:
        """Where the step's keys and values lie in a layer's cache, page after page."""
        return self._insertion.slots

    def store(
        self, layer: int, q_NHD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor
    ) -> torch.Tensor:
        """Turn queries and keys, and store the keys and values; returns the queries (N, H, D)."""
        cache_PZ2KD = self._layers[layer]
        q_NHD, _, _ = self._ops.rotary_insert(
            q_NHD, k_NKD, v_NKD, cache_PZ2KD, rotation=self._rotation, insertion=self._insertion
        )
        return q_NHD

    def attend(self, layer: int, q_NHD: torch.Tensor) -> torch.Tensor:
        """Attention of turned queries over what is stored. Shapes: q and result (N, H, D)."""
        cache_PZ2KD = self._layers[layer]
        if self._single is not None and self._chunk_pages is None:
            return self._single(q_NHD, cache_PZ2KD)
        outputs: list[torch.Tensor] = []
        if self._single is not None:
            outputs.append(self._single(q_NHD[:1], cache_PZ2KD))
        elif self._decode_pages is not None:
            q_BHD = q_NHD[: self._num_decodes]
            o_BHD, _ = self._ops.paged_decode(
                q_BHD, cache_PZ2KD, *self._decode_pages, scale=self._scale
            )
            outputs.append(o_BHD)
        if self._chunk_pages is not None:
            q_QHD = q_NHD[self._num_decodes :]
            o_QHD, _ = self._ops.paged_prefill(
                q_QHD, cache_PZ2KD, self._chunk_bounds, *self._chunk_pages, scale=self._scale
            )
            outputs.append(o_QHD)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _slots(self, span: AttentionSpan) -> list[int]:
        size = self._page_size
        return [
            span.pages[position // size] * size + position % size
            for position in range(span.start, span.end)
        ]

    def _pages(self, spans: Sequence[AttentionSpan]) -> tuple[torch.Tensor, torch.Tensor]:
        """Lengths (B) and page table (B, M), padded with page 0."""
        lengths = [span.end for span in spans]
        rows = [[*span.pages[: -(-span.end // self._page_size)]] for span in spans]
        longest = max(len(row) for row in rows)
        table = [row + [0] * (longest - len(row)) for row in rows]
        return torch.tensor(lengths, dtype=torch.int32), torch.tensor(table, dtype=torch.int32)
