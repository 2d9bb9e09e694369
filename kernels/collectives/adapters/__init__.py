"""Other projects' kernels for PCIe: what is bound where it is installed, and what is not."""

from __future__ import annotations

import functools
from importlib import metadata

from kernels.ledger import Rejection

_UNBOUND = {"b12x": "its kernels need peer access and SM120 cards"}


@functools.lru_cache(maxsize=1)
def absent_adapters() -> tuple[Rejection, ...]:
    """One line for each that is not bound: absent, or installed and unverified."""
    return tuple(
        Rejection(candidate=name, reasons=(_state(name), needs)) for name, needs in _UNBOUND.items()
    )


def _state(name: str) -> str:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
    return f"{version} is installed; not bound: no machine has verified it here"
