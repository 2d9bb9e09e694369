"""Whether a prefill step is overlapped, in how many chunks, on which wire: from measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernels.collectives.calls import Contract
from kernels.collectives.schedules.gate import Overlap
from kernels.ledger import Decision, Rejection
from kernels.spec import Tier
from llm_engine.parallel.overlap_wire import LinkLine

CHUNKS = (2, 3, 4)
# What a wire that changes numbers must save of a step before "auto" takes it.
LEAST_GAIN = 0.05
EVIDENCE = "run between processes over a limited link; bits compared with the same chunks in turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """What a step of a model costs on these ranks: the same numbers on all of them.

    `compute_s` is the time of the whole step's computation by its rows, at a few numbers of rows;
    what lies between them is taken from a straight line. `idle` is an exchange while the ranks do
    nothing else, `busy` while they compute, as idle where nobody looked; `exchanges_per_layer` are
    counted so, or taken together as one.
    Units: seconds, bytes, bytes per second.
    Raises: ValueError without a measurement.
    """

    compute_s: Mapping[int, float]
    num_layers: int
    bytes_per_token: float
    idle: LinkLine
    busy: LinkLine | None = None
    exchanges_per_layer: int = 2

    def __post_init__(self) -> None:
        if not self.compute_s or self.idle.bytes_s <= 0:
            raise ValueError(
                f"costs of {len(self.compute_s)} row counts at {self.idle.bytes_s} B/s: measure at "
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
        whole_bytes = self.bytes_per_token * num_tokens
        busy_s = 0.0
        if self.busy is not None:
            chunk_bytes = whole_bytes / num_chunks
            longer_s = self.busy.seconds(chunk_bytes) - self.idle.seconds(chunk_bytes)
            busy_s = max(0.0, num_exchanges * num_chunks * longer_s)
        return Overlap(
            compute_s=whole_s,
            wire_s=num_exchanges * self.idle.seconds(whole_bytes),
            num_chunks=num_chunks,
            penalty=max(0.0, num_chunks * chunk_s / whole_s - 1),
            latency_s=num_exchanges * self.idle.latency_s,
            busy_s=busy_s,
        )


def choose_overlap(
    num_tokens: int,
    costs: StepCosts,
    where: str,
    counts: Sequence[int] = CHUNKS,
    *,
    asked: str = "auto",
) -> tuple[int, Decision]:
    """How many chunks, 1 where overlapping does not pay; and the decision with both numbers.

    The least predicted time wins; among equals, fewer chunks. Asked for ("on"), it is taken in
    its best number of chunks, whether it pays or not.
    """
    overlaps = [costs.overlap(num_tokens, k) for k in counts]
    best = min(overlaps, key=lambda overlap: (overlap.predicted_s, overlap.num_chunks))
    others = tuple(
        Rejection(candidate=f"{other.num_chunks} chunks", reasons=(_times(other),))
        for other in overlaps
        if other is not best
    )
    decision = best.decision(where)
    is_on = best.pays or asked == "on"
    if is_on and not best.pays:
        off = Rejection(candidate="off", reasons=("predicted faster, but on is asked for",))
        chosen = f"on, {best.num_chunks} chunks"
        decision = replace(decision, chosen=chosen, rejected=(off,))
    decision = replace(
        decision,
        case=f"{num_tokens} tokens",
        asked=asked,
        source="tuned" if asked == "auto" else "explicit",
        reasons=(*decision.reasons, _times(best)),
        rejected=(*decision.rejected, *others),
        evidence=EVIDENCE,
    )
    return (best.num_chunks if is_on else 1), decision


def predicted_s(
    num_tokens: int, costs: StepCosts, counts: Sequence[int], *, asked: str = "auto"
) -> float:
    """What a step takes in the number of chunks that `choose_overlap` takes, or whole for "off"."""
    overlaps = [costs.overlap(num_tokens, k) for k in counts]
    best_s = min(overlap.predicted_s for overlap in overlaps)
    serial_s = overlaps[0].serial_s
    return {"off": serial_s, "on": best_s}.get(asked, min(serial_s, best_s))


def choose_wire(
    num_tokens: int,
    seconds: Mapping[Contract, float],
    errors: Mapping[Contract, float],
    where: str,
    *,
    asked: str,
) -> tuple[Contract, Decision]:
    """The wire of a step's exchanges, from what it takes with each; int8 with its error.

    Asked for ("int8"), it is taken; "auto" takes it where it saves `LEAST_GAIN` of the step.
    """
    exact_s, int8_s = seconds["exact"], seconds["int8"]
    gain = 1 - int8_s / exact_s
    times = f"predicted {int8_s * 1e3:.2f} ms as int8, {exact_s * 1e3:.2f} ms exact"
    error = f"relative error of one layer's exchanges: {errors['int8']:.2g}"
    chosen: Contract = "int8" if asked == "int8" or gain >= LEAST_GAIN else "exact"
    reasons = (times, error)
    if asked == "int8":
        reasons = ("asked for", *reasons)
    elif chosen == "int8":
        reasons = (*reasons, "allowed where it pays: answers depend on what was measured")
    rejected: tuple[Rejection, ...] = ()
    if chosen == "exact":
        why = f"saves {gain:.1%} of the step, less than {LEAST_GAIN:.0%}"
        rejected = (Rejection(candidate="int8", reasons=(why, error)),)
    return chosen, Decision(
        kind="wire",
        where=where,
        what="wire",
        asked=asked,
        chosen=chosen,
        tier=Tier.VENDOR,
        source="explicit" if asked == "int8" else "tuned",
        case=f"{num_tokens} tokens",
        reasons=reasons,
        rejected=rejected,
        evidence=EVIDENCE,
    )


def _times(overlap: Overlap) -> str:
    return (
        f"predicted {overlap.predicted_s * 1e3:.2f} ms in {overlap.num_chunks} chunks, "
        f"{overlap.serial_s * 1e3:.2f} ms in one"
    )
