"""Communication hidden under computation: two ranks, three link rates, and the staged run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks.overlap.crew import Crew
from benchmarks.overlap.figure import save_overlap_figure
from benchmarks.overlap.measure import FULL, QUICK, SIZE, Measurement
from benchmarks.overlap.models import MODELS
from benchmarks.overlap.rates import Row, measure_answers, measure_rates
from benchmarks.overlap.staircase import measure_staircase
from benchmarks.plot import figure_path


def run(*, quick: bool) -> list[Row]:
    """All rows of both models. Raises: RankFailed, WrongBits."""
    effort = QUICK if quick else FULL
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="lanewise-overlap-") as folder:
        for name, model in MODELS.items():
            num_layers = effort.num_layers or model.config().num_layers
            (Path(folder) / name).mkdir()
            with Crew(SIZE, Path(folder) / name) as crew:
                measurement = Measurement(crew, name, num_layers, effort)
                say(f"{name}: {measurement.num_parameters / 1e6:.0f} M parameters")
                found = [
                    *measure_rates(name, measurement, say),
                    *measure_answers(name, measurement, say),
                    *measure_staircase(name, measurement, say),
                ]
            facts = {
                "parameters": measurement.num_parameters,
                "tokens": effort.num_tokens,
                "dtype": measurement.dtype,
                "load_average": os.getloadavg()[0],
            }
            rows += [row | facts for row in found]
    if not quick:
        say(f"drawn in {save_overlap_figure(rows, figure_path('overlap'))}")
    return rows


def say(line: str) -> None:
    """Show what is being done."""
    print(f"  {line}", flush=True)
