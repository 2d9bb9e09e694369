"""Scale, shift and gate of a block, and which row of them serves which token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NORMS = ("layer", "rms", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """Rows of modulation. Shapes: scale, shift, gate (B, C); rows (T), integers below B.

    Scale and shift come together or not at all.
    """

    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    rows: torch.Tensor | None = None

    @property
    def num_rows(self) -> int:
        """B; 1 where there is nothing to choose from."""
        table = self.scale if self.scale is not None else self.gate
        return 1 if table is None else table.shape[0]

    def row_of_token(self, num_tokens: int, device: torch.device) -> torch.Tensor:
        """Table row of every token, int64 (T)."""
        import torch

        if self.rows is not None:
            return self.rows.long()
        per_row = max(num_tokens // self.num_rows, 1)
        return torch.arange(num_tokens, device=device) // per_row


def check_modulation(modulation: Modulation, num_tokens: int, width: int, norm: str) -> None:
    """Refuse tables that do not fit x (T, C) or each other.

    Raises:
        ShapeError: names the table, its shape and the shape it must have.
    """
    from kernels.checks import check_shape
    from kernels.errors import ShapeError

    if norm not in NORMS:
        raise ShapeError(f"norm is {norm!r}; it must be one of {', '.join(NORMS)}")
    if (modulation.scale is None) != (modulation.shift is None):
        raise ShapeError("scale and shift come together; one of them is missing")
    sizes = {"B": modulation.num_rows, "C": width, "T": num_tokens}
    for name in ("scale", "shift", "gate"):
        table = getattr(modulation, name)
        if table is not None:
            check_shape(table, "B C", sizes, name=name)
    if modulation.rows is not None:
        check_shape(modulation.rows, "T", sizes, name="rows")
    elif num_tokens % modulation.num_rows:
        raise ShapeError(f"{num_tokens} tokens do not divide into {modulation.num_rows} rows")
