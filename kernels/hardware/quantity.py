"""Numbers with their units: "32 GiB", "1.792 TB/s", "209 TFLOP/s", "0.5 us"."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_DECIMAL = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


@dataclass(frozen=True, slots=True)
class Dimension:
    """A kind of quantity: the units a file may write, and the range a value must lie in.

    Units: `low` and `high` in the dimension's base unit, whose factor is 1.
    """

    name: str
    base: str
    units: Mapping[str, float]
    low: float
    high: float


def _dimension(name: str, base: str, units: dict[str, float], low: float, high: float) -> Dimension:
    return Dimension(name, base, MappingProxyType(units), low, high)


BYTES = _dimension("size", "B", {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()}, 1.0, 2.0**50)
BYTES_PER_S = _dimension(
    "rate", "B/s", {f"{p}B/s": f for p, f in (_DECIMAL | _BINARY).items()}, 1e3, 1e15
)
FLOPS = _dimension(
    "operations per second",
    "FLOP/s",
    {f"{p}{op}/s": f for p, f in _DECIMAL.items() for op in ("FLOP", "OP")},
    1e6,
    1e18,
)
SECONDS = _dimension("time", "s", {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}, 0.0, 10.0)


def parse_quantity(text: str, dimension: Dimension) -> float:
    """The number of base units that `text` states.

    Raises: ValueError with the units allowed, or with the bound that the value breaks.
    """
    number, _, unit = text.strip().partition(" ")
    factor = dimension.units.get(unit.strip())
    if factor is None:
        raise ValueError(
            f"{text!r} is no {dimension.name}; write a number, a space and one of "
            f"{', '.join(dimension.units)}"
        )
    try:
        value = float(number) * factor
    except ValueError as error:
        raise ValueError(f"{number!r} in {text!r} is not a number") from error
    if not (math.isfinite(value) and dimension.low <= value <= dimension.high):
        raise ValueError(
            f"{text!r} is outside {dimension.low:g} to {dimension.high:g} {dimension.base}"
        )
    return value


def format_quantity(value: float, dimension: Dimension) -> str:
    """`value` in base units, written so that `parse_quantity` gives exactly it back."""
    number = str(int(value)) if float(value).is_integer() else repr(float(value))
    return f"{number} {dimension.base}"
