"""Attention over the paged cache for one step: single-token rows together, chunks one by one."""

# N tokens in the step, B decoding rows, G query heads per key/value head, H = K * G query heads,
# K key/value heads, D head dim, L layers, P pages in all, M pages of the longest row, Z page size,
# Q tokens of a chunk, T cached tokens.

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

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
        """Allocate all pages, zeroed: masked positions must hold finite numbers."""
        shape = (num_pages, page_size, 2, config.num_kv_heads, config.head_dim)
        self.layers = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)]
        self.page_size = page_size

    @staticmethod
    def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes that one token takes in all layers."""
        per_layer = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
        return config.num_layers * per_layer


class PagedAttention:
    """One step's attention: built once from its spans, then called for each layer.

    Spans of one token must come first.
    """

    def __init__(self, cache: PagedCache, spans: Sequence[AttentionSpan]) -> None:
        """Prepare slots, page tables and masks, which all layers share."""
        self._cache = cache
        self._page_size = cache.page_size
        self._slots_N = torch.tensor(
            [slot for span in spans for slot in self._slots(span)], dtype=torch.int64
        )
        decodes = [span for span in spans if span.num_tokens == 1]
        self._num_decodes = len(decodes)
        self._chunks = [span for span in spans if span.num_tokens > 1]
        dtype = cache.layers[0].dtype
        if decodes:
            self._prepare_decodes(decodes, dtype)
        self._chunk_pages = [self._page_index(span) for span in self._chunks]
        self._chunk_masks = [_chunk_mask(span, dtype) for span in self._chunks]

    def __call__(self, layer: int, q_NHD: torch.Tensor, kv_N2KD: torch.Tensor) -> torch.Tensor:
        """Store, then attend; see `llm_engine.models.base.Attend`."""
        cache_PZ2KD = self._cache.layers[layer]
        cache_PZ2KD.flatten(0, 1).index_copy_(0, self._slots_N, kv_N2KD)
        outputs: list[torch.Tensor] = []
        if self._num_decodes:
            outputs.append(self._decode(cache_PZ2KD, q_NHD[: self._num_decodes]))
        row = self._num_decodes
        for index, span in enumerate(self._chunks):
            rows = slice(row, row + span.num_tokens)
            kv_T2KD = kv_N2KD[rows]
            if span.start > 0:
                kv_T2KD = cache_PZ2KD[self._chunk_pages[index]].flatten(0, 1)[: span.end]
            outputs.append(_attend_chunk(q_NHD[rows], kv_T2KD, self._chunk_masks[index]))
            row += span.num_tokens
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _slots(self, span: AttentionSpan) -> list[int]:
        size = self._page_size
        return [
            span.pages[position // size] * size + position % size
            for position in range(span.start, span.end)
        ]

    def _page_index(self, span: AttentionSpan) -> torch.Tensor | slice:
        """Index of a span's pages; a slice, which copies nothing, when they lie in one run."""
        pages = span.pages[: -(-span.end // self._page_size)]
        if all(page == pages[0] + i for i, page in enumerate(pages)):
            return slice(pages[0], pages[0] + len(pages))
        return torch.tensor(pages, dtype=torch.int64)

    def _prepare_decodes(self, spans: Sequence[AttentionSpan], dtype: torch.dtype) -> None:
        self._longest = max(span.end for span in spans)
        self._mask_B11T: torch.Tensor | None = None
        if len(spans) == 1:
            self._decode_pages: torch.Tensor | slice = self._page_index(spans[0])
            return
        num_pages = -(-self._longest // self._page_size)
        rows = [[*span.pages[:num_pages]] for span in spans]
        padded = [row + [0] * (num_pages - len(row)) for row in rows]
        self._decode_pages = torch.tensor(padded, dtype=torch.int64)
        lengths = [span.end for span in spans]
        if min(lengths) < self._longest:
            positions_T = torch.arange(self._longest)
            is_padding_BT = positions_T >= torch.tensor(lengths).unsqueeze(1)
            mask_BT = torch.zeros(is_padding_BT.shape, dtype=dtype)
            mask_BT.masked_fill_(is_padding_BT, float("-inf"))
            self._mask_B11T = mask_BT[:, None, None, :]

    def _decode(self, cache_PZ2KD: torch.Tensor, q_BHD: torch.Tensor) -> torch.Tensor:
        num_rows, num_heads, head_dim = q_BHD.shape
        num_kv_heads = cache_PZ2KD.shape[3]
        kv = cache_PZ2KD[self._decode_pages]
        kv_BT2KD = kv.reshape(num_rows, -1, 2, num_kv_heads, head_dim)[:, : self._longest]
        k_BKTD, v_BKTD = kv_BT2KD.permute(2, 0, 3, 1, 4).unbind(0)
        # The query heads that share a key/value head become rows of one attention problem.
        q_BKGD = q_BHD.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
        o_BKGD = F.scaled_dot_product_attention(q_BKGD, k_BKTD, v_BKTD, attn_mask=self._mask_B11T)
        return o_BKGD.reshape(num_rows, num_heads, head_dim)


def _chunk_mask(span: AttentionSpan, dtype: torch.dtype) -> torch.Tensor | None:
    """Additive mask of a later chunk; a first chunk needs none, being plainly causal."""
    if span.start == 0:
        return None
    mask_QT = torch.full((span.num_tokens, span.end), float("-inf"), dtype=dtype)
    return mask_QT.triu_(diagonal=span.start + 1)


def _attend_chunk(
    q_QHD: torch.Tensor, kv_T2KD: torch.Tensor, mask_QT: torch.Tensor | None
) -> torch.Tensor:
    k_KTD, v_KTD = kv_T2KD.permute(1, 2, 0, 3).unbind(0)
    o_1HQD = F.scaled_dot_product_attention(
        q_QHD.transpose(0, 1).unsqueeze(0),
        k_KTD.unsqueeze(0),
        v_KTD.unsqueeze(0),
        attn_mask=mask_QT,
        is_causal=mask_QT is None,
        enable_gqa=True,
    )
    return o_1HQD.squeeze(0).transpose(0, 1)
