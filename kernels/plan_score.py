"""How much of a plan runs on kernels made for it: shares of work and of traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernels.spec import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseScore:
    """Shares, 0 to 1, that vendor or fused kernels carry in one phase on one family."""

    phase: str
    device: str
    flops: float
    traffic: float


def no_fallback_scores(
    uses: Iterable[tuple[str, str, Tier, float, float]],
) -> tuple[PhaseScore, ...]:
    """Scores from (phase, device, tier, operations, bytes) of every use of a plan."""
    totals: dict[tuple[str, str], list[float]] = {}
    for phase, device, tier, flops, traffic in uses:
        sums = totals.setdefault((phase, device), [0.0] * 4)
        is_good = tier.reaches(Tier.FUSED)
        for index, amount in enumerate((flops, traffic)):
            sums[index] += amount
            sums[index + 2] += amount if is_good else 0.0
    return tuple(
        PhaseScore(
            phase=phase,
            device=device,
            flops=_share(sums[2], sums[0]),
            traffic=_share(sums[3], sums[1]),
        )
        for (phase, device), sums in totals.items()
    )


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 1.0
