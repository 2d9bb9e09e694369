"""This machine's calibration as a plan takes it, and one line on what a plan's figures rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.calibration.table import calibration_path, load
from kernels.collectives.topology import this_topology
from kernels.cost_model.calibrated import MeasuredRates, measured_rates
from kernels.table_file import TableFileError, short_digest
from workers.planning.inputs import data_dir

if TYPE_CHECKING:
    from kernels.cost_model.basis import RatesBasis

NOT_HERE = "a described machine"


def measured_here(folder: str) -> tuple[MeasuredRates | None, str]:
    """The rates that `lanewise plan --calibrate` left in a data folder ("": as set).

    None, with the reason, where there are none or they are not of this machine.
    """
    found_dir = data_dir(folder)
    if isinstance(found_dir, str):
        return None, found_dir
    here = this_topology()
    path = calibration_path(found_dir, here)
    if not path.exists():
        return None, "nothing calibrated here; `lanewise plan --calibrate` measures this machine"
    try:
        found = load(path, here)
    except TableFileError as error:
        return None, f"calibration refused: {error}"
    busy = "" if found.is_quiet else f", while other programs had {found.disturbed:.0%}: repeat"
    return measured_rates(found), f"measured {found.made}{busy}"


def basis_text(basis: RatesBasis, why: str) -> str:
    """Calibrated or assumed, by which table, and what is assumed nevertheless."""
    parts = [f"assumed ({why})"]
    if basis.fingerprint:
        table = short_digest(basis.fingerprint)
        parts = [f"calibrated, table {table} ({why}): {', '.join(basis.calibrated)}"]
    if basis.sourced:
        names = ", ".join(text.partition(":")[0] for text in basis.sourced)
        parts.append(f"shares of peaks that others measured: {names} (sources: --json)")
    if basis.assumed:
        parts.append(f"assumed: {', '.join(basis.assumed)}")
    return "; ".join(parts)
