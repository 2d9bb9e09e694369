"""Whether a table still holds: a few of its choices timed again, by the sentinel's bounds."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from kernels.collectives.algorithms import algorithms_for
from kernels.collectives.communicator import join
from kernels.collectives.fabric import DEVICES, TRANSPORTS, Transport
from kernels.collectives.group import Group
from kernels.collectives.sentinel import DRIFT_RATIO
from kernels.collectives.tuning.probe import Case, time_candidates
from kernels.collectives.tuning.table import Entry, Table

LIMIT_S = 20.0
NUM_ROUNDS = 15
_LARGEST_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Rechecked:
    """One choice then and now: medians in microseconds."""

    entry: Entry
    now_us: float

    @property
    def has_drifted(self) -> bool:
        """By the bound of `kernels.collectives.sentinel`."""
        return self.now_us > DRIFT_RATIO * self.entry.us.p50


def recheck(
    table: Table,
    num_ranks: int,
    limit_s: float = LIMIT_S,
    transports: tuple[Transport, ...] = TRANSPORTS,
) -> tuple[Rechecked, ...]:
    """Time the all-reduces of a table again, in child processes within `limit_s`.

    Raises: TimeoutError when the limit passes; RuntimeError naming what a rank says.
    """
    entries = [e for e in table.entries if e.op == "all_reduce" and e.bytes <= _LARGEST_BYTES]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="lanewise-recheck-") as folder:
        groups = _groups(Path(folder) / "store", num_ranks)
        ranks = [
            context.Process(
                target=_rank,
                args=(group, entries, transports, theirs if group.rank == 0 else None),
                daemon=True,
            )
            for group in groups
        ]
        for process in ranks:
            process.start()
        theirs.close()
        try:
            times_us = _answer(ours, limit_s)
        finally:
            for process in ranks:
                process.kill()
                process.join()
    return tuple(Rechecked(entry=e, now_us=t) for e, t in zip(entries, times_us, strict=True))


def _groups(store: Path, num_ranks: int) -> Iterator[Group]:
    for rank in range(num_ranks):
        yield Group(rank=rank, size=num_ranks, rendezvous=f"file://{store}")


def _answer(pipe: Connection, limit_s: float) -> list[float]:
    until_s = time.monotonic() + limit_s
    if not pipe.poll(max(0.0, until_s - time.monotonic())):
        raise TimeoutError(f"the ranks did not answer within {limit_s} s")
    try:
        answer = pipe.recv()
    except EOFError:
        raise RuntimeError("the ranks ended without an answer") from None
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _rank(
    group: Group,
    entries: Sequence[Entry],
    transports: tuple[Transport, ...],
    pipe: Connection | None,
) -> None:
    """One child process; rank 0 answers with medians in microseconds, or with a reason."""
    torch.set_num_threads(1)
    answer: list[float] | str
    try:
        if DEVICES[transports[0]] == "cuda":
            torch.cuda.set_device(group.rank)
        communicator = join(replace(group, timeout_s=60.0), transports=transports)
        answer = []
        for entry in entries:
            case = Case(
                op=entry.op,
                contract=entry.contract,  # type: ignore[arg-type]  # a table holds contracts
                dtype=getattr(torch, entry.dtype),
                size_bytes=entry.bytes,
            )
            chosen = [a for a in algorithms_for(entry.op) if a.name == entry.choice]
            times = time_candidates(communicator, case, chosen, NUM_ROUNDS, lambda _: None)
            answer.append(times[entry.choice].p50)
    except Exception as error:  # noqa: BLE001 - a child's boundary: the parent reports it
        answer = f"{type(error).__name__}: {error}"
    if pipe is not None:
        pipe.send(answer)
