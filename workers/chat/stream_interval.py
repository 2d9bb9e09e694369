"""How long the tokens of running answers wait for each other before they are written."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.ledger import Decision
from kernels.spec import Tier

SHORT_S = 0.003
_LONG_ON_CPU_S = 0.05
MANY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInterval:
    """Seconds between two writes: `short_s`, or `long_s` while `MANY` answers or more run.

    The first and the last event of an answer never wait for the longer one.
    """

    short_s: float = SHORT_S
    long_s: float = SHORT_S

    def seconds(self, num_answers: int) -> float:
        """The interval while so many answers run."""
        return self.long_s if num_answers >= MANY else self.short_s


def choose_interval(asked_s: float, *, on_cpu: bool) -> tuple[StreamInterval, Decision]:
    """What was asked for (seconds; 0 for no wish), or what suits the machine, and the reasons."""
    if asked_s > 0:
        long_s, reasons = asked_s, ("LANEWISE_LLM_STREAM_INTERVAL_S asks for it",)
    elif on_cpu:
        long_s, reasons = _LONG_ON_CPU_S, _CPU_REASONS
    else:
        long_s, reasons = SHORT_S, ("the model computes on a device, the host's cores are free",)
    interval = StreamInterval(short_s=min(SHORT_S, long_s), long_s=long_s)
    decision = Decision(
        kind="chat",
        where=f"llm worker, {MANY} answers or more",
        what="stream interval",
        asked=f"{asked_s:g} s" if asked_s > 0 else "auto",
        chosen=f"{1e3 * long_s:g} ms",
        tier=Tier.FUSED,
        source="explicit" if asked_s > 0 else "default",
        reasons=reasons,
        evidence="run on CPU",
    )
    return interval, decision


_CPU_REASONS = (
    "every write of a token takes cores from the model, and tokens that wait share one",
    "the first and the last token of an answer do not wait",
    f"fewer answers than {MANY} wait {1e3 * SHORT_S:g} ms",
)
