"""Where tables lie, which of them holds for this machine, and what its ranks choose by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernels.collectives.choice import SEED, Knowledge
from kernels.collectives.topology import Topology, this_topology
from kernels.collectives.tuning.table import Table, load
from kernels.ledger import Decision, Ledger, Rejection
from kernels.spec import Tier
from kernels.table_file import TableFileError, short_digest

FOLDER = "collectives"
REMEDY = "measure with `lanewise tune`"
State = Literal["fresh", "incomplete", "stale", "unreadable", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A table, or why there is none.

    `fresh`: measured on this machine as it is. `incomplete`: the same, ended by its time limit.
    `stale`: the machine has changed since. `unreadable`: the file is damaged or was edited.
    """

    state: State
    path: Path
    reason: str
    remedy: str = ""
    table: Table | None = None


def table_path(data_dir: Path, here: Topology, num_ranks: int, device: str = "cpu") -> Path:
    """The file of a machine, a number of ranks and whose tensors move, in a data folder."""
    name = f"{short_digest(here.fingerprint)}-{_suffix(num_ranks, device)}"
    return data_dir / FOLDER / name


def _suffix(num_ranks: int, device: str) -> str:
    return f"{num_ranks}-ranks.json" if device == "cpu" else f"{num_ranks}-ranks-{device}.json"


def find_table(data_dir: Path, here: Topology, num_ranks: int, device: str = "cpu") -> Found:
    """The table of this machine; raises nothing: whatever is wrong with a file is its reason."""
    path = table_path(data_dir, here, num_ranks, device)
    if not path.exists():
        return _of_another_time(path, here, num_ranks, device)
    try:
        table = load(path, here, num_ranks)
    except TableFileError as error:
        return Found(state="unreadable", path=path, reason=str(error), remedy=REMEDY)
    measured = f"measured {table.made} in {table.duration_s:.0f} s"
    if table.is_complete:
        return Found(state="fresh", path=path, reason=measured, table=table)
    reason = f"{measured}: its time ended after {len(table.entries)} cases, seeds for the rest"
    return Found(state="incomplete", path=path, reason=reason, remedy=REMEDY, table=table)


def knowledge_for_this_machine(
    data_dir: Path,
    num_ranks: int,
    *,
    ledger: Ledger | None = None,
    here: Topology | None = None,
    device: str = "cpu",
) -> Knowledge:
    """What ranks choose by: this machine's table, or the seed; recorded either way.

    `device` says whose tensors the ranks move, in torch's words: each has a table of its own. All
    ranks of a group must be given the same: `join` compares it. A damaged file and one of another
    machine are named in the decision and never used.
    """
    found = find_table(data_dir, here or this_topology(), num_ranks, device)
    knowledge = found.table.knowledge() if found.table else SEED
    if ledger is not None:
        ledger.record(_decision(found, knowledge, num_ranks, device))
    return knowledge


def _of_another_time(path: Path, here: Topology, num_ranks: int, device: str) -> Found:
    """No file of this fingerprint: perhaps one from before the machine changed."""
    others = sorted(path.parent.glob(f"*-{_suffix(num_ranks, device)}"), key=_written_ns)
    if not others:
        reason = f"no table of {num_ranks} ranks in {path.parent}"
        return Found(state="absent", path=path, reason=reason, remedy=REMEDY)
    try:
        load(others[-1], here, num_ranks)
    except TableFileError as error:
        return Found(state="stale", path=path, reason=str(error), remedy=REMEDY)
    reason = f"{others[-1]} was renamed: its facts are this machine's, its name is not"
    return Found(state="stale", path=path, reason=reason, remedy=f"rename it to {path.name}")


def _written_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def _decision(found: Found, knowledge: Knowledge, num_ranks: int, device: str) -> Decision:
    """Tier: how ranks are joined is no grade of a kernel, so a floor on kernels passes it."""
    is_host = device == "cpu"
    is_used = found.table is not None
    refused = Rejection(candidate=str(found.path), reasons=(f"{found.state}: {found.reason}",))
    return Decision(
        kind="collective",
        where=f"between {num_ranks} ranks" if is_host else f"between devices of {num_ranks} ranks",
        what="table of collectives",
        asked="auto",
        chosen=found.path.name if is_used else "seed constants",
        tier=Tier.VENDOR,
        source="tuned" if is_used else "default",
        reasons=(f"{found.state}: {found.reason}",),
        rejected=() if is_used else (refused,),
        evidence=knowledge.evidence,
        remedy=_device_remedy(num_ranks)
        if found.remedy == REMEDY and not is_host
        else found.remedy,
    )


def _device_remedy(num_ranks: int) -> str:
    return f"measure with `lanewise tune --device cuda --ranks {num_ranks}`"
