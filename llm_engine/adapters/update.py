"""One low-rank update of a fused map."""

# O outputs and I inputs of a fused map, R sum of the ranks of its modules.

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Update:
    """y + x A^T B^T. Shapes: a (R, I); b (O, R), scaled, zero where a module has no part."""

    a_RI: torch.Tensor
    b_OR: torch.Tensor

    def to(self, place: torch.device) -> "Update":
        """The same update, on a device."""
        return Update(self.a_RI.to(place), self.b_OR.to(place))
