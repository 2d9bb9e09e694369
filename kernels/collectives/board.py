"""The page where ranks see each other: how far each has got, what each calls, who is alive."""

from __future__ import annotations

import functools
import os
import select
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import torch.distributed as dist

from kernels.collectives.calls import CALL_CELLS, Call, check_same
from kernels.collectives.errors import CollectiveError, GroupBroken, RankLost, RankStalled
from kernels.collectives.group import Group
from kernels.collectives.segment import PAGE_BYTES, Segment
from kernels.collectives.waiting import wait_until

MAX_RANKS = 64
# Cells of a rank's row; each flag that others poll has a cache line of its own.
_PID, _STEP, _BROKEN, _PROGRESS_NS, _CALLS = 0, 8, 16, 24, 32
_BLAMED = _BROKEN + 1
_ROW_BYTES = PAGE_BYTES
_ROW_CELLS = _ROW_BYTES // 8
assert _CALLS + 2 * CALL_CELLS <= _ROW_CELLS


class Board:
    """Steps that all ranks take together, and the blame when one does not.

    Invariants: every rank takes the same steps in the same order; a rank passes a step only when
    all have reached it. What is written before a step is seen by all after it. A call's cells
    are written in turns of two: nobody can be two steps ahead.
    Raises (all waits): RankLost, RankStalled, GroupBroken, each naming ranks.
    """

    def __init__(self, group: Group, store: dist.Store) -> None:
        if group.size > MAX_RANKS:
            raise CollectiveError(f"a group of {group.size} ranks: {MAX_RANKS} at most")
        self.group = group
        self.timeout_s = group.timeout_s
        self._segment = Segment(group, store, "board", group.size * _ROW_BYTES)
        self._cells = self._segment.cells(0, group.size * _ROW_CELLS)
        self._mine = group.rank * _ROW_CELLS
        # A model's steps repeat the same few calls, and packing one costs more than a step.
        self._packed = functools.lru_cache(maxsize=256)(Call.packed)
        self._step = 0
        self._calls = 0
        self._flags = [rank * _ROW_CELLS + _STEP for rank in group.others]
        self._cells[self._mine + _PID] = os.getpid()
        meet(group, store, "board")
        self._segment.forget_name()
        self._alive = _Alive({r: self._cells[r * _ROW_CELLS + _PID] for r in group.others})

    def limit_waits(self, timeout_s: float) -> None:
        """Change how long a wait may last."""
        self.timeout_s = timeout_s

    def step(self, doing: str, timeout_s: float | None = None) -> None:
        """Say that this rank has come here, and wait until all have."""
        self._step += 1
        cells, step, flags = self._cells, self._step, self._flags
        cells[self._mine + _PROGRESS_NS] = time.monotonic_ns()
        cells[self._mine + _STEP] = step
        self.wait(lambda: all(cells[f] >= step for f in flags), self._behind, doing, timeout_s)

    def agree(self, call: Call) -> list[Call]:
        """A step at which every rank says what it calls; the calls of all ranks, in order.

        Raises:
            MismatchedCall: they differ; every rank sees it, and the group stays usable.
        """
        turn = _CALLS + (self._calls % 2) * CALL_CELLS
        self._calls += 1
        mine = self._packed(call)
        at = self._mine + turn
        self._cells[at : at + CALL_CELLS] = memoryview(mine).cast("q")
        self.step(call.operation)
        starts = (rank * _ROW_CELLS + turn for rank in range(self.group.size))
        rows = [bytes(self._cells[start : start + CALL_CELLS]) for start in starts]
        if rows.count(mine) == len(rows):
            return [call] * len(rows)
        calls = [Call.unpacked(row) for row in rows]
        check_same(calls, self.group.rank)
        return calls

    def wait(
        self,
        is_ready: Callable[[], bool],
        blamed: Callable[[], tuple[int, ...]],
        doing: str,
        timeout_s: float | None = None,
    ) -> None:
        """Wait for a flag that other ranks set; `blamed` names those it still waits for."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s

        def look_around() -> None:
            self._raise_lost(self._alive.lost(), blamed, is_ready, doing)
            self._raise_broken(doing)

        def give_up(waited_s: float) -> Exception:
            return RankStalled(self._stalled(blamed(), doing, waited_s), blamed())

        try:
            wait_until(is_ready, limit_s, look_around, give_up)
        except CollectiveError as error:
            self.mark_broken(error)
            raise

    def look(self, ranks: tuple[int, ...], doing: str, waited_s: float) -> None:
        """For those who wait by other means: raise what `wait` would after `waited_s` for ranks."""
        try:
            self._raise_lost(self._alive.lost(), lambda: ranks, lambda: False, doing)
            self._raise_broken(doing)
            if waited_s > self.timeout_s:
                raise RankStalled(self._stalled(ranks, doing, waited_s), ranks)
        except CollectiveError as error:
            self.mark_broken(error)
            raise

    def lost(self, rank: int, doing: str) -> CollectiveError:
        """The error for a rank whose end of a connection is gone: it died, or gave up before."""
        found = self.gave_up()
        error: CollectiveError
        if found:
            text = f"{doing}: rank {found[0]} gave up because of rank {found[1]}"
            error = GroupBroken(text, (found[1],))
        else:
            text = f"{doing}: rank {rank} (process {self.pid(rank)}) is gone"
            renew = f"Found the group anew with epoch {self.group.epoch + 1}"
            error = RankLost(f"{text}, rank {self.group.rank} talked to it. {renew}", (rank,))
        self.mark_broken(error)
        return error

    def mark_broken(self, error: CollectiveError) -> None:
        """Tell the others that this rank has given up, and on whom."""
        blamed = error.ranks[0] if error.ranks else self.group.rank
        self._cells[self._mine + _BLAMED] = blamed
        self._cells[self._mine + _BROKEN] = 1

    def gave_up(self) -> tuple[int, int] | None:
        """A rank that has given up and the one that it blames."""
        for rank in self.group.others:
            row = rank * _ROW_CELLS
            if self._cells[row + _BROKEN]:
                return rank, self._cells[row + _BLAMED]
        return None

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return self._cells[rank * _ROW_CELLS + _PID]

    def lost_ranks(self) -> tuple[int, ...]:
        """Ranks whose process has ended."""
        return self._alive.lost()

    def steps(self) -> tuple[int, ...]:
        """How many steps each rank has reached."""
        return tuple(self._cells[r * _ROW_CELLS + _STEP] for r in range(self.group.size))

    def close(self) -> None:
        """Stop watching; the memory goes when the last rank is gone."""
        self._alive.close()

    def _behind(self) -> tuple[int, ...]:
        return tuple(r for r, step in enumerate(self.steps()) if step < self._step)

    def _stalled(self, ranks: Iterable[int], doing: str, waited_s: float) -> str:
        steps = self.steps()
        late = ", ".join(f"rank {r} (reached step {steps[r]})" for r in ranks)
        return (
            f"{doing}: rank {self.group.rank} waited {waited_s:.1f} s at step {self._step} for "
            f"{late}; alive but not there. Found the group anew with epoch {self.group.epoch + 1}"
        )

    def _raise_lost(
        self,
        lost: tuple[int, ...],
        blamed: Callable[[], tuple[int, ...]],
        is_ready: Callable[[], bool],
        doing: str,
    ) -> None:
        gone = tuple(rank for rank in lost if rank in blamed())
        if gone and not is_ready():
            pids = ", ".join(f"rank {r} (process {self.pid(r)})" for r in gone)
            raise RankLost(
                f"{doing}: {pids} is gone, rank {self.group.rank} waited for it. Found the group "
                f"anew with epoch {self.group.epoch + 1}",
                gone,
            )

    def _raise_broken(self, doing: str) -> None:
        found = self.gave_up()
        if found:
            rank, blamed = found
            raise GroupBroken(f"{doing}: rank {rank} gave up because of rank {blamed}", (blamed,))


class _Alive:
    """Watches processes by descriptor: a number that is given to a new process cannot deceive."""

    def __init__(self, pids: dict[int, int]) -> None:
        self._ranks: dict[int, int] = {}
        self._gone: set[int] = set()
        self._poll = select.poll()
        for rank, pid in pids.items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone.add(rank)
                continue
            self._ranks[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)

    def lost(self) -> tuple[int, ...]:
        """Ranks whose process has ended, reaped or not."""
        self._gone.update(self._ranks[descriptor] for descriptor, _ in self._poll.poll(0))
        return tuple(sorted(self._gone))

    def close(self) -> None:
        for descriptor in self._ranks:
            self._poll.unregister(descriptor)
            os.close(descriptor)
        self._ranks.clear()


def meet(group: Group, store: dist.Store, name: str) -> None:
    """Wait in the store until every rank has come to `name`.

    Raises:
        RankStalled: naming the ranks that did not within the group's time limit.
    """
    keys = [f"{name}-{rank}" for rank in range(group.size)]
    store.set(keys[group.rank], "here")
    try:
        store.wait(keys, timedelta(seconds=group.timeout_s))
    except RuntimeError as error:
        missing = tuple(r for r, key in enumerate(keys) if not store.check([key]))
        raise RankStalled(
            f"founding epoch {group.epoch} at {group.rendezvous}: rank {group.rank} waited "
            f"{group.timeout_s} s, missing: ranks {missing}. Start them, or found a smaller group",
            missing,
        ) from error
