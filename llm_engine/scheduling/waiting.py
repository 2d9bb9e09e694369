"""The line of sequences that have no slot: priority classes, ageing, fair turns of the tenants."""

import heapq
from dataclasses import dataclass, field
from itertools import count

from llm_engine.scheduling.shares import TenantShares
from llm_engine.sequence import Sequence

AGING_STEPS = 256

_Item = tuple[int, int, "_Entry"]


@dataclass(slots=True, eq=False)
class _Entry:
    """A waiting sequence; `level` is its class at present, None once it has left the line."""

    seq: Sequence
    level: int | None
    is_parked: bool = False


@dataclass(slots=True)
class _Level:
    """The sequences of one class, by tenant in order of arrival."""

    tenants: dict[str, list[_Item]] = field(default_factory=dict[str, list[_Item]])
    turns: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


class WaitingLine:
    """Sequences in line; the first is the least served tenant's oldest in the best class.

    A class is a priority, smaller first. For every `AGING_STEPS` steps of waiting a sequence moves
    up by one, as far as the best class in line: there the tenants take turns, so it is reached.
    A parked sequence keeps its age but is passed over. All operations take logarithmic time.
    """

    def __init__(self, shares: TenantShares) -> None:
        """Start empty."""
        self._shares = shares
        self._entries: dict[int, _Entry] = {}
        self._levels: dict[int, _Level] = {}
        self._aging: list[_Item] = []
        self._serial = count()

    def __len__(self) -> int:
        """How many wait, the parked ones included."""
        return len(self._entries)

    def __contains__(self, seq: Sequence) -> bool:
        """Whether a sequence waits."""
        return seq.seq_id in self._entries

    def push(self, seq: Sequence) -> None:
        """Line a sequence up; its age counts from `queued_at_step`."""
        entry = _Entry(seq, seq.priority)
        self._entries[seq.seq_id] = entry
        self._line_up(entry)
        due = seq.queued_at_step + AGING_STEPS
        heapq.heappush(self._aging, (due, next(self._serial), entry))

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out of the line; one that is not in it is no error."""
        entry = self._entries.pop(seq.seq_id, None)
        if entry is not None:
            entry.level = None
            self._drop_empty_levels()

    def park(self, seq: Sequence) -> None:
        """Pass a sequence over until `unpark`."""
        self._entries[seq.seq_id].is_parked = True

    def unpark(self, seq: Sequence) -> None:
        """Let a sequence take part again; one that has left is no error."""
        entry = self._entries.get(seq.seq_id)
        if entry is not None and entry.is_parked:
            entry.is_parked = False
            self._line_up(entry)

    def first(self) -> Sequence | None:
        """Who is next, or None."""
        while self._levels:
            best = min(self._levels)
            entry = self._first_of(best)
            if entry is not None:
                return entry.seq
            del self._levels[best]
        return None

    def age(self, step: int) -> None:
        """Move those up whose time has come."""
        while self._aging and self._aging[0][0] <= step:
            due, _, entry = heapq.heappop(self._aging)
            if entry.level is None:
                continue
            self._raise(entry, step)
            heapq.heappush(self._aging, (due + AGING_STEPS, next(self._serial), entry))
        if len(self._aging) > 2 * len(self._entries) + 64:
            self._aging = [item for item in self._aging if item[2].level is not None]
            heapq.heapify(self._aging)

    def _raise(self, entry: _Entry, step: int) -> None:
        assert entry.level is not None
        waited = (step - entry.seq.queued_at_step) // AGING_STEPS
        best = min((e for e in self._levels), default=entry.level)
        level = max(min(best, entry.level), entry.seq.priority - waited)
        if level < entry.level:
            entry.level = level
            if not entry.is_parked:
                self._line_up(entry)

    def _line_up(self, entry: _Entry) -> None:
        assert entry.level is not None
        level = self._levels.setdefault(entry.level, _Level())
        tenant = entry.seq.tenant
        if tenant not in level.tenants:
            level.tenants[tenant] = []
            heapq.heappush(level.turns, (self._shares.served(tenant), tenant))
        heapq.heappush(level.tenants[tenant], (entry.seq.arrival, next(self._serial), entry))

    def _first_of(self, number: int) -> _Entry | None:
        """The first of a class; entries that have left it are dropped on the way."""
        level = self._levels[number]
        while level.turns:
            served, tenant = level.turns[0]
            line = level.tenants[tenant]
            while line and (line[0][2].level != number or line[0][2].is_parked):
                heapq.heappop(line)
            if not line:
                heapq.heappop(level.turns)
                del level.tenants[tenant]
            elif served < self._shares.served(tenant):
                heapq.heapreplace(level.turns, (self._shares.served(tenant), tenant))
            else:
                return line[0][2]
        return None

    def _drop_empty_levels(self) -> None:
        if not self._entries:
            self._levels.clear()
            self._aging.clear()
