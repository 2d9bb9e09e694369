"""What predicted figures rest on, in words: measured here, measured elsewhere, or assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.cost_model.exchange import Exchange
    from kernels.cost_model.rates import DeviceRates


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesBasis:
    """What a plan's figures rest on, in words.

    `calibrated` was measured on this machine, in the table of that `fingerprint`; `sourced`
    elsewhere, by those who are named; `assumed` by nobody.
    """

    fingerprint: str
    calibrated: tuple[str, ...]
    sourced: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def word(self) -> str:
        """Calibrated, where a table of this machine is behind the figures, else assumed."""
        return "calibrated" if self.fingerprint else "assumed"


def basis_of(rates: DeviceRates, exchange: Exchange) -> RatesBasis:
    """The basis of figures that come from a device's rates and its links."""
    return RatesBasis(
        fingerprint=rates.fingerprint,
        calibrated=rates.calibrated,
        sourced=rates.sourced,
        assumed=(*rates.assumed, *exchange.assumed),
    )
