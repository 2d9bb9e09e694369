"""Rates of this machine's processor from its calibration, for as many threads as it has cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.calibration.table import Calibration

_MEASURED_THREADS = 2  # that computed at the same time
_HEAD_DIM = 64  # of the attention that was measured
# An error of a fit is a median; half the width of an interval is a standard deviation.
_SIGMA_OF_MEDIAN = 1.48


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """What a calibration gives a planner; what it does not give is absent.

    `flops_s` and `errors` by kind of work, as in efficiency.py; errors are relative.
    Units: operations and bytes per second of the whole processor; seconds. `texts` are for people.
    """

    flops_s: Mapping[str, float]
    memory_bytes_s: float | None
    start_s: float
    errors: Mapping[str, float]
    fingerprint: str
    made: str
    texts: tuple[str, ...]

    @property
    def work(self) -> frozenset[str]:
        """The kinds of work whose rate was measured."""
        return frozenset(self.flops_s) | ({"memory"} if self.memory_bytes_s else set())


def measured_rates(found: Calibration) -> MeasuredRates:
    """The rates behind a calibration's constants.

    Products and attention grow with cores; weights read from memory do not, beyond the two threads
    that read them. Products were measured in float32. A constant that the fit left at zero says
    nothing about a rate. Errors are at least those of stretches of whole steps.
    """
    num_cores = max(_MEASURED_THREADS, int(found.facts["num_cores"]))
    gemm, attention = found.computing["gemm"], found.computing["attention"]
    call_s, flop_s, weight_byte_s, _ = gemm.constants
    _, core_flop_s, score_s, _ = attention.constants
    seconds = {
        "dense": flop_s,
        "experts": flop_s,
        "attention": core_flop_s + score_s / (4 * _HEAD_DIM),
    }
    flops_s = {work: num_cores / s for work, s in seconds.items() if s > 0}
    fits = {work: attention if work == "attention" else gemm for work in flops_s}
    in_steps = found.in_steps.computing.error
    errors = {w: _SIGMA_OF_MEDIAN * max(fit.error, in_steps) for w, fit in fits.items()}
    memory_bytes_s = _MEASURED_THREADS / weight_byte_s if weight_byte_s > 0 else None
    texts = [f"{work} {rate / 1e9:.0f} GFLOP/s" for work, rate in flops_s.items()]
    texts += [f"weights {memory_bytes_s / 1e9:.1f} GB/s"] if memory_bytes_s else []
    if num_cores > _MEASURED_THREADS:
        texts.append(f"from {_MEASURED_THREADS} threads to {num_cores} cores in proportion")
    return MeasuredRates(
        flops_s=flops_s,
        memory_bytes_s=memory_bytes_s,
        start_s=call_s,
        errors=errors,
        fingerprint=found.fingerprint,
        made=found.made,
        texts=tuple(texts),
    )
