"""Which pages have a copy where a stage computes prompts, and how much of each copy is valid."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llm_engine.layers.paged_rows import AttentionSpan


@dataclass(slots=True)
class _Copy:
    slot: int
    num_valid: int  # tokens from the page's first on


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Tokens at their rows of a layer of both caches, page after page, in the same order.

    Units: rows, page times page size plus place. Shapes: equally many of both.
    """

    home: tuple[int, ...]
    staged: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """Spans whose pages are slots; `missing` is to be copied there before, `written` back after."""

    spans: tuple[AttentionSpan, ...]
    missing: TokenRows
    written: TokenRows


class PromptPages:
    """Pages of the cache, and the slots of the smaller one in which stages compute prompts.

    The cache is complete after every step: a slot may be given up at any time, least recently
    used first. No tensors: every rank keeps the same account from the same commands.
    Invariants: a page has at most one slot and a slot one page; the valid tokens of a slot equal
    those of its page.
    """

    def __init__(self, num_slots: int, page_size: int) -> None:
        """All slots are free."""
        self.num_slots, self.page_size = num_slots, page_size
        self._copies: OrderedDict[int, _Copy] = OrderedDict()
        self._free = list(range(num_slots - 1, -1, -1))

    def place(self, spans: Sequence[AttentionSpan]) -> Placed:
        """Slots for all tokens up to the end of each span, which count as computed from now on.

        The spans' pages together are at most `num_slots`.
        """
        tables = [self._pages(span) for span in spans]
        self._take({page for table in tables for page in table})
        placed: list[AttentionSpan] = []
        missing: tuple[list[int], list[int]] = ([], [])
        written: tuple[list[int], list[int]] = ([], [])
        for span, table in zip(spans, tables, strict=True):
            for index, page in enumerate(table):
                copy = self._copies[page]
                first = index * self.page_size
                start = min(max(span.start - first, 0), self.page_size)
                end = min(span.end - first, self.page_size)
                self._note(missing, page, copy.slot, range(copy.num_valid, start))
                self._note(written, page, copy.slot, range(start, end))
                # What lies behind the span is of a guess that was not taken, or of nobody.
                copy.num_valid = end if start < end else max(copy.num_valid, start)
            slots = tuple(self._copies[page].slot for page in table)
            placed.append(replace(span, pages=slots))
        return Placed(tuple(placed), _rows(missing), _rows(written))

    def overwrite(self, spans: Iterable[AttentionSpan]) -> None:
        """Tokens of the spans were written to the cache alone."""
        for span in spans:
            for index, page in enumerate(self._pages(span)):
                copy = self._copies.get(page)
                if copy is not None:
                    start = max(span.start - index * self.page_size, 0)
                    copy.num_valid = min(copy.num_valid, start)

    def forget(self, pages: Iterable[int]) -> None:
        """What the pages held is no longer what they hold."""
        for page in pages:
            copy = self._copies.pop(page, None)
            if copy is not None:
                self._free.append(copy.slot)

    def clear(self) -> None:
        """Forget all pages."""
        self.forget(list(self._copies))
        self._free.sort(reverse=True)  # as ranks that have just begun have them

    def _pages(self, span: AttentionSpan) -> Sequence[int]:
        return span.pages[: -(-span.end // self.page_size)]

    def _take(self, pages: set[int]) -> None:
        assert len(pages) <= self.num_slots, f"{len(pages)} pages for {self.num_slots} slots"
        for page in sorted(pages):
            if page in self._copies:
                self._copies.move_to_end(page)
        for page in sorted(pages):
            if page not in self._copies:
                slot = self._free.pop() if self._free else self._copies.popitem(last=False)[1].slot
                self._copies[page] = _Copy(slot, 0)

    def _note(self, rows: tuple[list[int], list[int]], page: int, slot: int, run: range) -> None:
        size = self.page_size
        rows[0].extend(range(page * size + run.start, page * size + run.stop))
        rows[1].extend(range(slot * size + run.start, slot * size + run.stop))


def _rows(rows: tuple[list[int], list[int]]) -> TokenRows:
    return TokenRows(tuple(rows[0]), tuple(rows[1]))
