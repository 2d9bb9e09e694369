"""What kernels reach of a device's peaks: shares from a table, each with where it comes from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.hardware.products import Product

TABLE = Path(__file__).parent / "efficiencies.toml"
WORK = (
    "dense",
    "fp8",
    "fp8_as_bf16",
    "experts",
    "experts_4bit",
    "attention",
    "sparse",
    "indexer",
    "memory",
)
_ASSUMED = "assumed"


class MalformedEfficiency(ValueError):
    """A table of efficiencies that cannot be used; the message names the entry and the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """A share of a peak, above 0 and at most 1, and its source; "assumed" where nobody measured.

    Raises: MalformedEfficiency.
    """

    work: str
    share: float
    source: str

    def __post_init__(self) -> None:
        if self.work not in WORK:
            raise MalformedEfficiency(f"{self.work!r} is none of {', '.join(WORK)}")
        if not 0 < self.share <= 1:
            raise MalformedEfficiency(f"{self.work}: share {self.share} must be above 0, at most 1")
        if not self.source.strip():
            raise MalformedEfficiency(f"{self.work}: a share needs a source, or 'assumed'")

    @property
    def is_assumed(self) -> bool:
        """Whether nobody measured it."""
        return self.source.startswith(_ASSUMED)


def sparse_heads_of(product: Product, table: Path = TABLE) -> int:
    """Heads that attention over gathered rows computes at least, however few a rank has."""
    rows = tomllib.loads(table.read_text(encoding="utf-8"))["sparse_heads"]
    return int(rows.get(product.name, rows["any"])["heads"])


def efficiencies_of(product: Product, table: Path = TABLE) -> Mapping[str, Efficiency]:
    """The shares of a product by kind of work: its own, else those of its kind.

    Raises: MalformedEfficiency.
    """
    raw = tomllib.loads(table.read_text(encoding="utf-8"))
    rows: dict[str, Any] = {**raw["cpu" if product.traits.kind == "cpu" else "accelerator"]}
    rows |= raw.get("product", {}).get(product.name, {})
    found = {work: Efficiency(work=work, **row) for work, row in rows.items()}
    if missing := [work for work in WORK if work not in found]:
        raise MalformedEfficiency(f"{product.name}: no share for {', '.join(missing)}")
    return found
