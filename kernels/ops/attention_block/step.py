"""One step of a batch over a paged cache, as the native kernels read it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.native.library import Step

# N rows (new tokens), S spans, D head dim, P positions.


class Span(Protocol):
    """Rows of one sequence: positions [start, start + num_tokens), and the sequence's pages."""

    @property
    def start(self) -> int:
        """The first row's position."""
        ...

    @property
    def num_tokens(self) -> int:
        """How many rows."""
        ...

    @property
    def pages(self) -> Sequence[int]:
        """Pages in order of position; more than are needed do no harm."""
        ...


@dataclass(frozen=True, slots=True)
class TurnTable:
    """Cosines and sines by position, float32 (P, D / 2), contiguous."""

    cosines: torch.Tensor
    sines: torch.Tensor


class PagedStep:
    """The rows of a step in the order of its spans; prepared once for all layers."""

    def __init__(self, spans: Sequence[Span], table: TurnTable) -> None:
        """Lay out positions and pages; the table must reach beyond every position."""
        positions: list[int] = []
        row_span: list[int] = []
        pages: list[int] = []
        span_row, span_page = [0], [0]
        for index, span in enumerate(spans):
            positions.extend(range(span.start, span.start + span.num_tokens))
            row_span.extend((index,) * span.num_tokens)
            pages.extend(span.pages)
            span_row.append(len(positions))
            span_page.append(len(pages))
        self.num_rows = len(positions)
        # One conversion for all: at few rows, numpy's cost by call exceeds that of the numbers.
        numbers = array("i", positions + row_span + span_row + pages + span_page)
        self._kept = (numbers, table)
        address, _ = numbers.buffer_info()
        rows_at = address + numbers.itemsize * 2 * len(positions)
        pages_at = rows_at + numbers.itemsize * len(span_row)
        self._step = Step(
            num_rows=self.num_rows,
            num_spans=len(spans),
            positions=address,
            row_span=address + numbers.itemsize * len(positions),
            span_row=rows_at,
            pages=pages_at,
            span_page=pages_at + numbers.itemsize * len(pages),
            cosines=table.cosines.data_ptr(),
            sines=table.sines.data_ptr(),
        )
        self.address = ctypes.addressof(self._step)
