"""Calibrations with planted constants."""

from kernels.calibration.in_steps import SUM_OF_PARTS
from kernels.calibration.table import Calibration
from kernels.calibration.talking import OPERATIONS
from kernels.calibration.work import UNITS, Fit
from kernels.collectives.topology import this_topology


def planted(**changes):
    """A machine of 50 GFLOP/s, 100 MB/s and no costs beside those, unless changed."""
    line = Fit(constants=(0.0, 0.0), error=0.02, num_samples=6)
    computing = {
        kind: Fit(constants=(1e-5, 2e-11, *([0.0] * (len(units) - 2))), error=0.03, num_samples=9)
        for kind, units in UNITS.items()
    }
    given = {
        "facts": this_topology().facts(),
        "computing": computing,
        "wire": dict.fromkeys(OPERATIONS, line),
        "wire_busy": dict.fromkeys(OPERATIONS, line),
        "computing_lost": dict.fromkeys(OPERATIONS, line),
        "in_steps": SUM_OF_PARTS,
        "balance_bytes_s": 1e8,
        "seen_bytes_s": (5e7,),
        "seen_sizes": {},
        "spread": 0.01,
        "disturbed": 0.0,
        "load": 0.1,
        "made": "2026-01-01T00:00:00+00:00",
        "duration_s": 1.0,
    }
    return Calibration(**(given | changes))
