"""Whether the machine still computes as fast as when it was calibrated."""

from __future__ import annotations

import statistics

from kernels.calibration.computing import grid, measure_works
from kernels.calibration.crew import Crew
from kernels.calibration.table import Calibration

# A faster or slower machine than this is another one: shared hosts change their clock.
MOST_DRIFT = 0.1
_EVERY = 5  # of the products that were measured: seven


def drift(crew: Crew, calibration: Calibration) -> float:
    """The time that products take now over what the calibration says, less one (0.1: slower).

    Raises: CrewFailed.
    """
    works = [work for work in grid() if work.kind == "gemm"][::_EVERY]
    both = crew.run(measure_works, works)
    return (
        statistics.median(
            max(pair) / calibration.seconds(work)
            for work, pair in zip(works, zip(*both, strict=True), strict=True)
        )
        - 1
    )
