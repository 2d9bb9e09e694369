"""What a rotation is made of: tables and style, the heads' norm, the pages that take the keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STYLES = ("half", "interleaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Angles and how they turn a head.

    Shapes: cos, sin (P, R/2), one row a position; positions (T), integers below P; without them
    row t serves token t. `style` "half" pairs dimension i with i + R/2, "interleaved" 2i with
    2i + 1. The first R dimensions turn, or the last R with `turns_last`; `is_inverse` turns back.
    `spread` is what `for_step` leaves for the CPU form.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor | None = None
    style: str = "half"
    turns_last: bool = False
    is_inverse: bool = False
    spread: tuple[torch.Tensor, ...] = ()

    @property
    def width(self) -> int:
        """R, the dimensions of a head that turn."""
        return 2 * self.cos.shape[1]

    def for_step(self, num_tokens: int, dtype: torch.dtype | None = None) -> Rotation:
        """The same rotation with the rows of a step's tokens gathered, once for all its layers.

        `dtype` rounds the tables to that of the activations, which the CPU form turns faster.
        """
        import torch

        rows = slice(num_tokens) if self.positions is None else self.positions
        cos_TR, sin_TR = self.cos[rows].to(dtype), self.sin[rows].to(dtype)
        signed_TR = -sin_TR if self.is_inverse else sin_TR
        if self.style == "half":
            cos_T1R = torch.cat((cos_TR, cos_TR), dim=-1).unsqueeze(1)
            spread = (cos_T1R, torch.cat((-signed_TR, signed_TR), dim=-1).unsqueeze(1))
        else:
            spread = (torch.complex(cos_TR.float(), signed_TR.float()).unsqueeze(1),)
        return replace(self, cos=cos_TR, sin=sin_TR, positions=None, spread=spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorm:
    """RMSNorm of every head before it turns. Shapes: weights (D). A missing one: no norm there."""

    q_weight: torch.Tensor | None = None
    k_weight: torch.Tensor | None = None
    eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion:
    """Where rows go. Shapes: slots (T), page · page size + offset, distinct; -1: nowhere.

    A cache in e4m3 holds x / scale, limited to its range; other caches ignore `scale`.
    """

    slots: torch.Tensor
    scale: float = 1.0
