"""How a running sequence gives up its pages: dropped and computed again, or copied to the host."""

from collections.abc import Callable
from dataclasses import dataclass

from kernels.ledger import Decision, Rejection
from kernels.spec import Tier
from llm_engine.scheduling.step_time import StepTimeModel

RECOMPUTE, COPY, AUTO = "recompute", "copy", "auto"
WHERE = "llm engine, sequences that must make room"


@dataclass(slots=True)
class PreemptionPolicy:
    """Chooses by what was asked for, else by time.

    Units: `bytes_per_token` of the cache; `copy_bytes_per_s` measured, 0 where nothing can be
    copied. `record` is told each time the choice changes.
    """

    asked: str
    model: StepTimeModel
    bytes_per_token: float
    copy_bytes_per_s: float
    record: Callable[[Decision], object]
    chosen: str | None = None

    def should_copy(self, num_tokens: int) -> bool:
        """Whether a sequence with that many computed tokens is copied rather than dropped."""
        chosen, reason = self._choose(num_tokens)
        if chosen != self.chosen:
            self.chosen = chosen
            self.record(self._decision(chosen, reason))
        return chosen == COPY

    def _choose(self, num_tokens: int) -> tuple[str, str]:
        if self.asked != AUTO:
            return self.asked, "asked for"
        if not self.copy_bytes_per_s:
            return RECOMPUTE, "there is no host tier to copy to: host_cache_bytes is 0"
        if not self.model.num_observed:
            return RECOMPUTE, "no step is measured yet"
        recompute_s = self.model.prompt_s(0, num_tokens)
        copy_s = 2 * num_tokens * self.bytes_per_token / self.copy_bytes_per_s
        reason = (
            f"for {num_tokens} tokens computing again is expected to take {recompute_s * 1e3:.1f} "
            f"ms, copying out and in {copy_s * 1e3:.1f} ms"
        )
        return (COPY if copy_s < recompute_s else RECOMPUTE), reason

    def _decision(self, chosen: str, reason: str) -> Decision:
        other = RECOMPUTE if chosen == COPY else COPY
        return Decision(
            kind="cache",
            where=WHERE,
            what="preemption",
            asked=self.asked,
            chosen=chosen,
            tier=Tier.VENDOR,
            source="default" if self.asked == AUTO else "explicit",
            reasons=(reason,),
            rejected=(Rejection(candidate=other, reasons=(reason,)),),
        )
