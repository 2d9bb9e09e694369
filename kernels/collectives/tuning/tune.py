"""Measuring a machine: ranks as child processes, a time limit, and whatever hangs left out."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.communicator import join
from kernels.collectives.fabric import DEVICES, TRANSPORTS, Transport
from kernels.collectives.group import Group
from kernels.collectives.topology import Topology
from kernels.collectives.tuning.links import copy_rate_bytes_s, fit_links
from kernels.collectives.tuning.probe import Case, measure
from kernels.collectives.tuning.progress import Progress, reject, resumed, take
from kernels.collectives.tuning.table import Table

CONTRACTS: tuple[Contract, ...] = ("exact", "fast")
# A ladder of decode batches at the small end, of prefill chunks at the large one.
SIZES_BYTES = (1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 23)
_OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """What is measured, and for how long at most.

    Units: seconds; bytes. `candidate_timeout_s` bounds one exchange: a candidate that hangs
    longer is left out. A candidate that runs on a device may hang where no rank can tell: after
    `silence_s` without a report of any rank it is left out too. All transports move the tensors of
    one device.
    """

    num_ranks: int
    limit_s: float = 60.0
    candidate_timeout_s: float = 5.0
    silence_s: float = 30.0
    num_rounds: int = 15
    operations: tuple[str, ...] = _OPERATIONS
    contracts: tuple[Contract, ...] = CONTRACTS
    sizes_bytes: tuple[int, ...] = SIZES_BYTES
    dtype: torch.dtype = torch.bfloat16
    transports: tuple[Transport, ...] = TRANSPORTS
    islands: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if len({DEVICES[name] for name in self.transports}) != 1:
            raise ValueError(f"transports {self.transports}: one or more, all of one device")

    @property
    def device(self) -> str:
        """Whose tensors move, in torch's words."""
        return DEVICES[self.transports[0]]

    def cases(self) -> list[Case]:
        """Every cell, the ones that decide decoding and prefill first."""
        return [
            Case(op=op, contract=contract, dtype=self.dtype, size_bytes=size_bytes)
            for op in self.operations
            for contract in self.contracts
            for size_bytes in self.sizes_bytes
        ]


def tune(
    settings: TuneSettings,
    topology: Topology,
    begun: Table | None = None,
    report: Callable[[int, int], None] = lambda _done, _of: None,
    left_out: Mapping[str, str] | None = None,
) -> Table:
    """Measure, within the limit; what was not reached is left to the seeds.

    `left_out` names what cannot be tried here, with the reasons, for the table to say. What a table
    that was `begun` on this machine holds already is kept. `report` hears how many cases are done,
    and of how many.

    Nothing runs in this process. When a candidate hangs or its ranks die, it is recorded as
    rejected with the reason and new ranks go on with the next case.
    Raises: RuntimeError when not even the links could be measured within the limit.
    """
    begin_s = time.monotonic()
    found = resumed(settings.cases(), begun)
    found.rejected.update(left_out or {})
    epoch = 0
    with tempfile.TemporaryDirectory(prefix="lanewise-tune-") as folder:
        while not found.is_complete and time.monotonic() - begin_s < settings.limit_s:
            left_s = settings.limit_s - (time.monotonic() - begin_s)
            _run_crew(settings, found, Path(folder) / f"store-{epoch}", left_s, report)
            epoch += 1
    if not found.model:
        raise RuntimeError(
            f"no link of {settings.num_ranks} ranks was measured within {settings.limit_s} s; "
            f"left out: {found.rejected}"
        )
    return Table(
        facts=topology.facts(),
        model=found.model,
        residual=found.residual,
        entries=tuple(found.entries[case] for case in sorted(found.entries)),
        rejected=found.rejected,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - begin_s + (begun.duration_s if begun else 0.0), 3),
        is_complete=found.is_complete,
        copy_bytes_s=found.copy_bytes_s,
    )


def _run_crew(
    settings: TuneSettings,
    found: Progress,
    store: Path,
    left_s: float,
    report: Callable[[int, int], None],
) -> None:
    """One set of ranks until it is done, out of time, or broken by a candidate."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    cases = range(len(settings.cases()))
    todo = [index for index in cases if index not in found.entries]
    ranks = _start_ranks(context, settings, found, store, todo, theirs)
    theirs.close()
    until_s = time.monotonic() + left_s
    # The first report may take as long as the slowest interpreter needs to start.
    patience_s = left_s
    try:
        while ours.poll(max(0.0, min(patience_s, until_s - time.monotonic()))):
            patience_s = settings.silence_s
            if not take(found, ours.recv()):
                return
            report(len(found.entries), len(cases))
        if time.monotonic() < until_s:
            reject(found, f"no report for {settings.silence_s:g} s: it hangs")
    except EOFError:
        reject(found, "its ranks ended without an answer")
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _start_ranks(
    context: SpawnContext,
    settings: TuneSettings,
    found: Progress,
    store: Path,
    todo: Sequence[int],
    pipe: Connection,
) -> list[BaseProcess]:
    ranks: list[BaseProcess] = []
    for rank in range(settings.num_ranks):
        group = Group(
            rank=rank,
            size=settings.num_ranks,
            rendezvous=f"file://{store}",
            timeout_s=settings.candidate_timeout_s,
            islands=settings.islands,
        )
        given = (group, settings, todo, dict(found.rejected), not found.model)
        process = context.Process(
            target=_rank, args=(*given, pipe if rank == 0 else None), daemon=True
        )
        process.start()
        ranks.append(process)
    return ranks


def _rank(
    group: Group,
    settings: TuneSettings,
    todo: Sequence[int],
    rejected: dict[str, str],
    wants_links: bool,
    pipe: Connection | None,
) -> None:
    """One child process. Rank 0 reports; a failure of any rank reaches it through the group."""

    def tell(kind: str, value: object) -> None:
        if pipe is not None:
            pipe.send((kind, value))

    torch.set_num_threads(1)
    transports: list[Transport] = [n for n in settings.transports if n not in rejected]
    try:
        if settings.device == "cuda":
            torch.cuda.set_device(group.rank)
        # Founding a group takes as long as the slowest interpreter needs to start.
        communicator = join(
            replace(group, timeout_s=60.0),
            transports=tuple(transports),
            report=lambda name: tell("trying", (-1, name)),
        )
        tell("trying", (-1, ""))
        communicator.fabric.limit_waits(group.timeout_s)
        if wants_links:
            tell("copy", copy_rate_bytes_s(communicator, settings.num_rounds))
            for name, fitted in fit_links(communicator, settings.num_rounds):
                tell("link", (name, fitted))
        cases = settings.cases()
        for index in todo:
            entry = measure(
                communicator,
                cases[index],
                settings.num_rounds,
                rejected,
                lambda name, index=index: tell("trying", (index, name)),
            )
            tell("entry", (index, entry))
    except Exception as error:  # noqa: BLE001 - a child's boundary: the parent records it
        tell("failed", f"{type(error).__name__}: {error}")
        return
    tell("done", None)
