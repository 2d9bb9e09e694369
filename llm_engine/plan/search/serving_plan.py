"""What a search has found for a model on a machine: plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kernels.cost_model.basis import RatesBasis
from llm_engine.plan.load import LoadForecast
from llm_engine.plan.search.candidates import Rejected
from llm_engine.plan.search.memory import MemoryUse
from llm_engine.plan.search.prediction import StepPrediction
from llm_engine.plan.search.runnable import RunsToday


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is planned for. Units: tokens, callers who wait for each answer."""

    prompt_tokens: int = 8192
    answer_tokens: int = 512
    num_clients: int = 8
    goal: str = "ttft"
    wire: str = "bf16"
    chunk: int = 0  # 0: chosen

    @property
    def longest(self) -> int:
        """Tokens of a prompt with its answer."""
        return self.prompt_tokens + self.answer_tokens

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "answer_tokens", "num_clients"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.goal not in GOALS:
            raise ValueError(f"goal {self.goal!r} is none of {', '.join(GOALS)}")


GOALS = ("ttft", "throughput", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTime:
    """One prompt alone on the machine. Units: seconds, with the interval of stated errors."""

    seconds: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """Layouts of both phases over one set of weights, and what they give.

    Units: seconds, tokens a second of all sequences. `marginal`: relative gain of the goal's
    figure with ten per cent more of a resource. `notes` say what was refused or turned off.
    """

    prefill: StepPrediction
    decode: StepPrediction
    memory: MemoryUse
    prompt: PromptTime
    prefill_tokens_s: float
    decode_tokens_s: float
    load: LoadForecast | None
    today: RunsToday
    marginal: Mapping[str, float]
    rejected: tuple[Rejected, ...]
    basis: RatesBasis
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "prefill": self.prefill.as_dict(),
            "decode": self.decode.as_dict(),
            "memory": {**asdict(self.memory), "free_bytes": self.memory.free_bytes},
            "prompt": asdict(self.prompt),
            "prefill_tokens_per_s": self.prefill_tokens_s,
            "decode_tokens_per_s": self.decode_tokens_s,
            "load": asdict(self.load) if self.load else None,
            "runs_today": asdict(self.today),
            "marginal": dict(self.marginal),
            "rejected": [asdict(entry) for entry in self.rejected],
            "rates": {"basis": self.basis.word, **asdict(self.basis)},
            "assumed": list(self.basis.assumed),
            "notes": list(self.notes),
        }


Cause = Literal["weights", "cache", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoesNotFit:
    """No layout leaves room for one request.

    `cause`: "weights" do not fit, no "cache" is left beside them, or the "length" is beyond the
    model's own. `cached_tokens` of the `longest` request find room at best.
    Units: bytes of one device, tokens.
    """

    cause: Cause
    weight_bytes: float
    needed_bytes: float
    device_bytes: int
    free_bytes: float
    cached_tokens: int
    longest: int
    remedy: str

    def __str__(self) -> str:
        missing = {
            "weights": "the weights do not fit",
            "cache": f"beside the weights, {max(0.0, self.free_bytes) / 1e9:.1f} GB are left for "
            f"rows of {self.cached_tokens:,} tokens, the longest request has {self.longest:,}",
            "length": f"{self.longest:,} tokens are longer than the model allows",
        }
        return (
            f"does not fit: {missing[self.cause]}. The best layout needs "
            f"{self.needed_bytes / 1e9:.1f} GB on each device ({self.weight_bytes / 1e9:.1f} GB of "
            f"weights) of {self.device_bytes / 1e9:.1f} GB. {self.remedy}"
        )
