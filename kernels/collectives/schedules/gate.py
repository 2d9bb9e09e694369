"""Whether overlapping pays: the gain of hiding against what smaller pieces cost."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.ledger import Decision, Rejection
from kernels.spec import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Computation and transfers of a step, and what cutting it into chunks does.

    Units: seconds for the whole step; `penalty` is the share by which computation of one chunk
    grows against its part of the whole (0.1: ten per cent slower). `busy_s` is what transfers take
    longer while their rank computes: on a CPU they wait for a core.
    """

    compute_s: float
    wire_s: float
    num_chunks: int
    penalty: float
    latency_s: float
    busy_s: float = 0.0

    @property
    def gain_s(self) -> float:
        """What hiding saves: min(c, w) (1 - 1/k)."""
        return min(self.compute_s, self.wire_s) * (1 - 1 / self.num_chunks)

    @property
    def loss_s(self) -> float:
        """What cutting costs: p c + k a, and what transfers lose to computation."""
        return self.penalty * self.compute_s + self.num_chunks * self.latency_s + self.busy_s

    @property
    def pays(self) -> bool:
        """Whether the gain is above the loss."""
        return self.gain_s > self.loss_s

    @property
    def serial_s(self) -> float:
        """The step without overlap."""
        return self.compute_s + self.wire_s

    @property
    def predicted_s(self) -> float:
        """The step with overlap, if it is on."""
        return self.serial_s - self.gain_s + self.loss_s

    def decision(self, where: str) -> Decision:
        """On or off, with both numbers."""
        chosen, other = ("on", "off") if self.pays else ("off", "on")
        numbers = f"hides {self.gain_s * 1e3:.2f} ms, costs {self.loss_s * 1e3:.2f} ms"
        return Decision(
            kind="collective",
            where=where,
            what="overlap",
            asked="auto",
            chosen=f"{chosen}, {self.num_chunks} chunks" if self.pays else chosen,
            tier=Tier.VENDOR,
            source="default",
            reasons=(numbers,),
            rejected=(Rejection(candidate=other, reasons=(numbers,)),),
        )


def best_bound(compute_s: float, wire_s: float) -> float:
    """The most that any overlap can gain: (c + w) / max(c, w), never above 2."""
    return (compute_s + wire_s) / max(compute_s, wire_s)
