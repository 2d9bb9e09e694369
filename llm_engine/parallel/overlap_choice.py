"""Whether a prefill step is overlapped, and in how many chunks: from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernels.collectives.schedules.gate import Overlap
from kernels.ledger import Decision, Rejection

CHUNKS = (2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What a step of a model costs on these ranks: the same numbers on all of them.

    `compute_s` is the time of the whole step's computation by its rows, at a few numbers of rows;
    what lies between them is taken from a straight line. An exchange of b bytes takes
    `latency_s + b / bytes_s`: two sums a layer, or one gather of keys.
    Units: seconds, bytes, bytes per second.
    Raises: ValueError without a measurement.
    """

    compute_s: Mapping[int, float]
    num_layers: int
    bytes_per_token: int
    latency_s: float
    bytes_s: float
    exchanges_per_layer: int = 2

    def __post_init__(self) -> None:
        if not self.compute_s or self.bytes_s <= 0:
            raise ValueError(
                f"costs of {len(self.compute_s)} row counts at {self.bytes_s} B/s: measure at "
                "least one number of rows, over a link that moves something"
            )

    def of_rows(self, num_rows: int) -> float:
        """Seconds that the step's computation takes for so many rows."""
        known = sorted(self.compute_s.items())
        below = [pair for pair in known if pair[0] <= num_rows]
        above = [pair for pair in known if pair[0] >= num_rows]
        if not below:  # few rows read the same weights as the fewest measured
            return above[0][1]
        if not above:
            return below[-1][1] * num_rows / below[-1][0]
        (low, low_s), (high, high_s) = below[-1], above[0]
        share = (num_rows - low) / (high - low) if high > low else 0.0
        return low_s + share * (high_s - low_s)

    def overlap(self, num_tokens: int, num_chunks: int) -> Overlap:
        """The gate's question for a step of so many tokens, cut in so many chunks."""
        whole_s = self.of_rows(num_tokens)
        chunk_s = self.of_rows(-(-num_tokens // num_chunks))
        num_exchanges = self.exchanges_per_layer * self.num_layers
        wire_bytes = num_exchanges * self.bytes_per_token * num_tokens
        return Overlap(
            compute_s=whole_s,
            wire_s=num_exchanges * self.latency_s + wire_bytes / self.bytes_s,
            num_chunks=num_chunks,
            penalty=max(0.0, num_chunks * chunk_s / whole_s - 1),
            latency_s=num_exchanges * self.latency_s,
        )


def choose_overlap(
    num_tokens: int, costs: StepCosts, where: str, counts: Sequence[int] = CHUNKS
) -> tuple[int, Decision]:
    """How many chunks, 1 where overlapping does not pay; and the decision with both numbers.

    The least predicted time wins; among equals, fewer chunks.
    """
    overlaps = [costs.overlap(num_tokens, k) for k in counts]
    best = min(overlaps, key=lambda overlap: (overlap.predicted_s, overlap.num_chunks))
    others = tuple(
        Rejection(candidate=f"{other.num_chunks} chunks", reasons=(_times(other),))
        for other in overlaps
        if other is not best
    )
    decision = best.decision(where)
    decision = replace(
        decision,
        case=f"{num_tokens} tokens",
        source="tuned",
        reasons=(*decision.reasons, _times(best)),
        rejected=(*decision.rejected, *others),
        evidence="run between processes over a limited link; bits compared with the same chunks "
        "in turn",
    )
    return (best.num_chunks if best.pays else 1), decision


def _times(overlap: Overlap) -> str:
    return (
        f"predicted {overlap.predicted_s * 1e3:.2f} ms in {overlap.num_chunks} chunks, "
        f"{overlap.serial_s * 1e3:.2f} ms in one"
    )
