"""Where a step's rows lie in the paged cache, and which pages they see."""

# B sequences that decode, M pages of the longest row.

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Self

import torch

from kernels.ops.rotary_insert import Insertion
from llm_engine.device import upload
from llm_engine.layers.single_decode import SingleDecode


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRows:
    """What layers of one kind share in a step: where its rows lie, and which pages they see.

    `decode_pages` are lengths (B,) and page table (B, M) of the leading rows that decode, or None
    without any; `chunk_pages` those of the chunks behind them, whose rows begin at `chunk_bounds`.
    `single` decodes the one row that decodes, in place of the pages.
    """

    insertion: Insertion
    num_decodes: int
    decode_pages: tuple[torch.Tensor, torch.Tensor] | None
    chunk_pages: tuple[torch.Tensor, torch.Tensor] | None = None
    chunk_bounds: torch.Tensor | None = None
    single: SingleDecode | None = None

    @classmethod
    def of_spans(
        cls,
        spans: Sequence[AttentionSpan],
        page_size: int,
        place: torch.device,
        *,
        single_decode: type[SingleDecode] | None = None,
        window: int | None = None,
    ) -> Self:
        """Rows of spans, the leading ones of one token decoded; indices go to `place`."""
        slots = [slot for span in spans for slot in _slots(span, page_size)]
        decodes = list(takewhile(lambda span: span.num_tokens == 1, spans))
        chunks = spans[len(decodes) :]
        single: SingleDecode | None = None
        if len(decodes) == 1 and single_decode is not None:
            (span,) = decodes
            single = single_decode(span.pages[: -(-span.end // page_size)], span.end)
        bounds = [0, *accumulate(span.num_tokens for span in chunks)]
        return cls(
            insertion=Insertion(slots=upload(slots, torch.int64, place)),
            num_decodes=len(decodes),
            decode_pages=_pages(decodes, page_size, place, window) if decodes else None,
            chunk_pages=_pages(chunks, page_size, place, window) if chunks else None,
            chunk_bounds=upload(bounds, torch.int32, place),
            single=single,
        )


def _slots(span: AttentionSpan, page_size: int) -> list[int]:
    return [
        span.pages[position // page_size] * page_size + position % page_size
        for position in range(span.start, span.end)
    ]


def _pages(
    spans: Sequence[AttentionSpan], page_size: int, place: torch.device, window: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths (B) and page table (B, M), padded with page 0.

    Both count from the first page that the window of a span's first row reaches: what lies
    before it is neither read nor masked.
    """
    skipped = [0 if window is None else max(0, s.start - window + 1) // page_size for s in spans]
    pairs = list(zip(spans, skipped, strict=True))
    lengths = [span.end - skip * page_size for span, skip in pairs]
    rows = [[*span.pages[skip : -(-span.end // page_size)]] for span, skip in pairs]
    longest = max(len(row) for row in rows)
    table = [row + [0] * (longest - len(row)) for row in rows]
    return upload(lengths, torch.int32, place), upload(table, torch.int32, place)
