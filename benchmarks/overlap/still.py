"""A communicator whose exchanges take no time: what is left of a run is its computation."""

# N rows.

from __future__ import annotations

import torch

from kernels.collectives.alone import Alone
from kernels.collectives.calls import Contract, Reduction
from kernels.collectives.group import Group


class Still(Alone):
    """Sums are this rank's own term, gathers its own rows once for each rank.

    So the results are of the right shapes, and no result of the model. Ranks must hold equally
    many rows.
    """

    def __init__(self, group: Group) -> None:
        """Stand in for a communicator of the group."""
        super().__init__()
        self.group = group

    def all_reduce(
        self,
        x: torch.Tensor,
        *,
        contract: Contract = "exact",
        reduction: Reduction = "sum",
        algorithm: str = "auto",
    ) -> torch.Tensor:
        """Nothing is exchanged."""
        return x

    def all_gather(
        self, x: torch.Tensor, *, contract: Contract = "exact", algorithm: str = "auto"
    ) -> torch.Tensor:
        """Nothing is exchanged. Shapes: x (N, …); result (size · N, …)."""
        return x.expand(self.group.size, *x.shape).flatten(0, 1)
