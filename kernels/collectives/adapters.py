"""Other projects' kernels for PCIe: whether they are installed, and why they are not used."""

from __future__ import annotations

import functools
from importlib import metadata

from kernels.ledger import Rejection

_KNOWN = {
    "flashinfer-python": "its PCIe kernels need peer access and two, four or eight NVIDIA cards",
    "b12x": "its kernels need peer access and SM120 cards",
}


@functools.lru_cache(maxsize=1)
def absent_adapters() -> tuple[Rejection, ...]:
    """One line for each: absent, or installed and not bound because nothing could verify it."""
    return tuple(
        Rejection(candidate=name, reasons=(_state(name), needs)) for name, needs in _KNOWN.items()
    )


def _state(name: str) -> str:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
    return f"{version} is installed; not bound: no machine has verified it here"
