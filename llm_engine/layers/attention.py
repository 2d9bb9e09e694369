"""Attention over the paged cache for one step: single-token rows together, then the chunks."""

# N tokens in the step, B sequences (in a step: those that decode), Q tokens of all chunks,
# H query heads, K key/value heads, D head dim, L layers, P pages in all, M pages of the longest
# row, Z page size.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from kernels.ops.rotary_insert import Rotation
from llm_engine.layers.paged_rows import AttentionSpan, PagedRows
from llm_engine.layers.single_decode import SingleDecode
from llm_engine.memory.lazy_tensor import LazyTensor
from llm_engine.model_config import ModelConfig
from llm_engine.windows import Windows


class PagedCache:
    """Keys and values of each layer: (P, Z, 2, K, D), so a page is one block of memory."""

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int | Sequence[int],
        page_size: int,
        dtype: torch.dtype,
        *,
        place: torch.device | None = None,
    ) -> None:
        """Reserve all pages, zeroed: masked positions must hold finite numbers.

        `num_pages` are those of every layer, or of each by itself. On a device they are taken at
        once; the CPU's memory, and that of no `place`, at first use.
        """
        if isinstance(num_pages, int):
            num_pages = [num_pages] * config.num_layers
        page = (page_size, 2, config.num_kv_heads, config.head_dim)
        if place is None or place.type == "cpu":
            self.reservations = [LazyTensor((count, *page), dtype) for count in num_pages]
            self.layers = [reserved.tensor for reserved in self.reservations]
        else:
            self.reservations = []
            self.layers = [torch.zeros(n, *page, dtype=dtype, device=place) for n in num_pages]
        self.page_size = page_size
        self.head_dim = config.head_dim

    @staticmethod
    def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes that one token takes in all layers."""
        return config.num_layers * PagedCache.layer_bytes_per_token(config, dtype)

    @staticmethod
    def layer_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes that one token takes in a layer."""
        return 2 * config.num_kv_heads * config.head_dim * dtype.itemsize


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
    """One step's attention: built once from its rows, then called for each layer.

    The leading spans of one token are decoded together; a later one counts as a chunk.
    """

    def __init__(
        self,
        cache: PagedCache,
        rows: PagedRows,
        ops: AttentionOps,
        rotation: Rotation,
        *,
        windowed: "WindowedRows | None" = None,
        sinks: Sequence[torch.Tensor] = (),
    ) -> None:
        """Keep what all layers of a kind share.

        `windowed` is the same step in the pages of layers with a window; `sinks` (H,) are each
        layer's, or none.
        """
        self._rotation = rotation
        self._layers = cache.layers
        self._ops = ops
        self._scale = cache.head_dim**-0.5
        self._sinks = sinks
        self._full = rows
        self._windows = windowed and windowed.windows
        self._windowed = rows if windowed is None else windowed.rows

    @classmethod
    def of_spans(
        cls,
        cache: PagedCache,
        spans: Sequence[AttentionSpan],
        ops: AttentionOps,
        rotation: Rotation,
        *,
        windowed: "WindowedSpans | None" = None,
        sinks: Sequence[torch.Tensor] = (),
    ) -> Self:
        """Prepare slots, lengths and page tables from spans, `windowed` from its own."""
        place, size = rotation.cos.device, cache.page_size
        rows = PagedRows.of_spans(spans, size, place, single_decode=ops.single_decode)
        return cls(
            cache,
            rows,
            ops,
            rotation,
            windowed=windowed and windowed.rows(size, place),
            sinks=sinks,
        )

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
        """Where the step's keys and values lie in a full layer's cache, page after page."""
        return self._full.insertion.slots

    def store(
        self, layer: int, q_NHD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor
    ) -> torch.Tensor:
        """Turn queries and keys, and store the keys and values; returns the queries (N, H, D)."""
        cache_PZ2KD = self._layers[layer]
        insertion = self._step_of(layer).insertion
        q_NHD, _, _ = self._ops.rotary_insert(
            q_NHD, k_NKD, v_NKD, cache_PZ2KD, rotation=self._rotation, insertion=insertion
        )
        return q_NHD

    def attend(self, layer: int, q_NHD: torch.Tensor) -> torch.Tensor:
        """Attention of turned queries over what is stored. Shapes: q and result (N, H, D)."""
        cache_PZ2KD, step = self._layers[layer], self._step_of(layer)
        options = self._options(layer)
        if step.single is not None and step.chunk_pages is None:
            return step.single(q_NHD, cache_PZ2KD)
        outputs: list[torch.Tensor] = []
        if step.single is not None:
            outputs.append(step.single(q_NHD[:1], cache_PZ2KD))
        elif step.decode_pages is not None:
            q_BHD = q_NHD[: step.num_decodes]
            o_BHD, _ = self._ops.paged_decode(q_BHD, cache_PZ2KD, *step.decode_pages, **options)
            outputs.append(o_BHD)
        if step.chunk_pages is not None:
            q_QHD = q_NHD[step.num_decodes :]
            o_QHD, _ = self._ops.paged_prefill(
                q_QHD, cache_PZ2KD, step.chunk_bounds, *step.chunk_pages, **options
            )
            outputs.append(o_QHD)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _step_of(self, layer: int) -> PagedRows:
        is_windowed = self._windows is not None and layer in self._windows.layers
        return self._windowed if is_windowed else self._full

    def _options(self, layer: int) -> Mapping[str, Any]:
        """Scale, window and sinks, the last two only where there are any."""
        options: dict[str, Any] = {"scale": self._scale}
        if self._windows is not None and (window := self._windows.of(layer)):
            options["window"] = window
        if self._sinks:
            options["sink_H"] = self._sinks[layer]
        return options


@dataclass(frozen=True, slots=True)
class WindowedRows:
    """A step's rows in the pages of layers with windows."""

    windows: Windows
    rows: PagedRows


@dataclass(frozen=True, slots=True)
class WindowedSpans:
    """A step's spans over the pages of layers with windows; those out of sight may be absent."""

    windows: Windows
    spans: Sequence[AttentionSpan]

    def rows(self, page_size: int, place: torch.device) -> WindowedRows:
        """Their rows, counted from the first page that a window reaches."""
        window = self.windows.tokens
        return WindowedRows(
            self.windows, PagedRows.of_spans(self.spans, page_size, place, window=window)
        )
