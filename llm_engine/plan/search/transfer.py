"""One exchange of a step as the planner counts it: who takes part, how many bytes, when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernels.cost_model.exchange import Exchange, Operation

After = Literal["project", "attend", "mlp", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """`count` equal exchanges among n ranks, each behind a part of a layer or of the whole step.

    The ranks of a group lie `stride` devices apart. `is_under`: it travels while the ranks attend,
    by the layout itself. Units: bytes, as `Exchange.seconds` takes them.
    """

    operation: Operation
    size_bytes: float
    n: int
    count: float
    after: After = "step"
    stride: int = 1
    is_under: bool = False

    def seconds(self, exchange: Exchange) -> float:
        """All of them, one after the other."""
        links = exchange.strided(self.stride)
        return self.count * links.seconds(self.operation, self.size_bytes, self.n)

    @property
    def sent_bytes(self) -> float:
        """Bytes that leave one rank in all of them."""
        if self.operation == "send":
            return self.count * self.size_bytes
        times = 2 if self.operation == "all_reduce" else 1
        return self.count * times * (self.n - 1) / self.n * self.size_bytes
