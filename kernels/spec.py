"""What an op is, as data: its implementations, what each needs, what each costs.

Free of torch: a plan for eight cards is computed from specs on a machine that has none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits


class Tier(StrEnum):
    """How good a path is; `generic` is what others fall back to silently."""

    VENDOR = "vendor"
    FUSED = "fused"
    GENERIC = "generic"

    def reaches(self, floor: Tier) -> bool:
        """Whether this tier is at least as good as `floor`."""
        order = (Tier.GENERIC, Tier.FUSED, Tier.VENDOR)
        return order.index(self) >= order.index(floor)


def load_entry(entry: str) -> Callable[..., Any]:
    """Import `module:function` and return the function."""
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One use of an op: its sizes by name, its dtypes and its options.

    Units: sizes count elements. `options` are the flags that choose a code path ("quant": "fp8").
    """

    dtype: str
    sizes: Mapping[str, int]
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        """Short form for tables: `bf16 T=4096 D=576 quant=fp8`."""
        parts = [self.dtype, *(f"{k}={v}" for k, v in self.sizes.items())]
        return " ".join([*parts, *(f"{k}={v}" for k, v in self.options.items())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A fact that must hold, and why: `unmet` returns the reason it does not, or None."""

    name: str
    unmet: Callable[[DeviceTraits, Case], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One way to compute an op. `entry` is `module:function`, imported when first called."""

    name: str
    tier: Tier
    entry: str
    requires: tuple[Requirement, ...] = ()
    evidence: str = "compiled offline and interpreted, not yet run on hardware"

    def unmet(self, traits: DeviceTraits, case: Case) -> tuple[str, ...]:
        """Every requirement that does not hold, with its reason."""
        reasons = (requirement.unmet(traits, case) for requirement in self.requires)
        return tuple(reason for reason in reasons if reason is not None)

    def load(self) -> Callable[..., Any]:
        """Import and return the function."""
        return load_entry(self.entry)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpSpec:
    """An op, whole; one object an op. `implementations` stand in the order of preference.

    `read_write_bytes` and `flops` are the floor of traffic and work of a case. `reference` is
    plain torch in any dtype, float64 included: the oracle. `example` makes the arguments of a
    case: `example(case, generator) -> (args, kwargs)`. `cases` are what the tests run; `peers`
    names libraries to compare with where they are installed.
    """

    name: str
    summary: str
    reference: str
    example: str
    implementations: tuple[Implementation, ...]
    read_write_bytes: Callable[[Case], float]
    flops: Callable[[Case], float]
    cases: tuple[Case, ...]
    peers: tuple[str, ...] = ()

    def find(self, name: str) -> Implementation:
        """The implementation of that name.

        Raises:
            KeyError: lists the names there are.
        """
        for implementation in self.implementations:
            if implementation.name == name:
                return implementation
        options = ", ".join(i.name for i in self.implementations)
        raise KeyError(f"{self.name} has no implementation {name!r}; there are: {options}")


ITEM_BYTES: Mapping[str, float] = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "mxfp4": 0.53125,  # 4 bits and one 8-bit scale for every 32
}
