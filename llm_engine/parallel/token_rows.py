"""Tokens' keys and values taken out of a cache and put into another, whatever its layout."""

# N tokens, h of the cache's heads, D head dim, P pages, Z slots of a page, W bytes or values of a
# token's head.

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.ops.attention_block.native import SCALE_WORDS
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.native import NativeCache
from llm_engine.model_config import ModelConfig

Cache = PagedCache | NativeCache


class TokenRows(Protocol):
    """Rows count page after page: page times page size plus place. Exact: values are moved."""

    def take(self, layer: int, heads: slice, rows_N: torch.Tensor) -> torch.Tensor:
        """Keys and values. Shapes: result (h N, W), head after head."""
        ...

    def put(self, layer: int, heads: slice, rows_N: torch.Tensor, kv: torch.Tensor) -> None:
        """Store what `take` gave for as many rows and heads."""
        ...

    @property
    def nothing(self) -> torch.Tensor:
        """What is taken of no token. Shapes: (0, W)."""
        ...


def token_rows(cache: Cache) -> TokenRows:
    """Those of a cache, in its layout."""
    if isinstance(cache, PagedCache):
        return PagedTokens(cache)
    return NativeTokens.of(cache)


def bytes_per_token(config: ModelConfig, dtype: torch.dtype, *, is_packed: bool) -> int:
    """Bytes that one token takes in all layers of a cache, in the layout that weights ask for."""
    if is_packed:
        return NativeCache.bytes_per_token(config)
    return PagedCache.bytes_per_token(config, dtype)


@dataclass(frozen=True, slots=True)
class PagedTokens:
    """Of torch's layout, (P, Z, 2, K, D): W is 2 D values."""

    cache: PagedCache

    def take(self, layer: int, heads: slice, rows_N: torch.Tensor) -> torch.Tensor:
        """See the protocol."""
        slots_2KD = self.cache.layers[layer].flatten(0, 1)
        kv_N2hD = slots_2KD[:, :, heads].index_select(0, rows_N)
        return kv_N2hD.permute(2, 0, 1, 3).flatten(0, 1).flatten(1)

    def put(self, layer: int, heads: slice, rows_N: torch.Tensor, kv: torch.Tensor) -> None:
        """See the protocol."""
        slots_2KD = self.cache.layers[layer].flatten(0, 1)
        kv_hN2D = kv.view(heads.stop - heads.start, len(rows_N), 2, -1)
        slots_2KD[:, :, heads].index_copy_(0, rows_N, kv_hN2D.permute(1, 2, 0, 3))

    @property
    def nothing(self) -> torch.Tensor:
        """See the protocol."""
        return self.cache.layers[0].new_empty(0, 2 * self.cache.head_dim)


@dataclass(frozen=True, slots=True)
class NativeTokens:
    """Of the native kernels' layout: W is the bytes of a token's words, its scales among them.

    Shapes: words (Z, 2 (D + 2)), where in a page of a head each token's words lie.
    """

    cache: NativeCache
    words_ZW: torch.Tensor

    @classmethod
    def of(cls, cache: NativeCache) -> NativeTokens:
        """See heads.h: keys (D / 2, Z, 2), scales (Z), values (Z / 2, D, 2), scales (Z)."""
        size, dim = cache.shape.page_size, cache.shape.head_dim
        part = (dim + SCALE_WORDS) * size
        within = torch.arange(part)
        keys_ZD = within[: dim * size].view(dim // 2, size, 2).transpose(0, 1).flatten(1)
        values_ZD = within[: dim * size].view(size // 2, dim, 2).transpose(1, 2).reshape(size, dim)
        scales_Z2 = within[dim * size :].view(size, SCALE_WORDS)
        parts = (keys_ZD, scales_Z2, part + values_ZD, part + scales_Z2)
        return cls(cache, torch.cat(parts, dim=1))

    def take(self, layer: int, heads: slice, rows_N: torch.Tensor) -> torch.Tensor:
        """See the protocol."""
        taken_hNW = self._words(layer)[self._places(heads, rows_N)]
        return taken_hNW.flatten(0, 1).view(torch.uint8)

    def put(self, layer: int, heads: slice, rows_N: torch.Tensor, kv: torch.Tensor) -> None:
        """See the protocol."""
        places = self._places(heads, rows_N)
        words_hNW = kv.view(torch.int16).view(heads.stop - heads.start, len(rows_N), -1)
        self._words(layer)[places] = words_hNW

    @property
    def nothing(self) -> torch.Tensor:
        """See the protocol."""
        width = self.words_ZW.shape[1] * self.cache.layers[0].itemsize
        return torch.empty(0, width, dtype=torch.uint8)

    def _words(self, layer: int) -> torch.Tensor:
        return self.cache.layers[layer].flatten(2)

    def _places(
        self, heads: slice, rows_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Page, head and word of each. Shapes: broadcast to (h, N, W)."""
        size = self.cache.shape.page_size
        pages_N, heads_h = rows_N // size, torch.arange(heads.start, heads.stop)
        return pages_N.view(1, -1, 1), heads_h.view(-1, 1, 1), self.words_ZW[rows_N % size]
