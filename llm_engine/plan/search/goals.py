"""What a goal counts for a pair of layouts, and how sure a comparison of two pairs is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_engine.plan.search.memory import MemoryUse
    from llm_engine.plan.search.predict import Setting
    from llm_engine.plan.search.prediction import StepPrediction
    from llm_engine.plan.search.serving_plan import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Layouts of both phases that one set of weights serves, and what they hold."""

    prefill: StepPrediction
    decode: StepPrediction
    memory: MemoryUse

    @property
    def complexity(self) -> int:
        """Mechanisms of both."""
        return self.prefill.layout.complexity + self.decode.layout.complexity


Goal = Callable[[Pair, "Workload"], float]


def prompt_alone_s(prefill: StepPrediction, work: Workload) -> float:
    """Seconds to the first token when every step takes as long as the predicted one."""
    num = -(-work.prompt_tokens // prefill.size.rows)
    return num * prefill.seconds + prefill.fill_s


def _ttft(pair: Pair, work: Workload) -> float:
    """Seconds to the first token of a prompt alone, and a tenth of those to the end."""
    return prompt_alone_s(pair.prefill, work) + 0.1 * work.answer_tokens * pair.decode.seconds


def _throughput(pair: Pair, work: Workload) -> float:
    """Seconds of the machine for one request when others wait."""
    prompt_s = work.prompt_tokens / pair.prefill.rows_s
    return prompt_s + work.answer_tokens / pair.decode.rows_s


def _context(pair: Pair, work: Workload) -> float:
    """The longest sequence first, then how many tokens fit, then time."""
    memory = pair.memory
    base = _ttft(pair, work)
    return base / 1e6 - memory.max_context - memory.kv_tokens / 1e9


GOALS_S: Mapping[str, Goal] = {"ttft": _ttft, "throughput": _throughput, "context": _context}


GOAL_TEXTS: Mapping[str, str] = {
    "ttft": "a prompt alone, and a tenth of its answer's time",
    "throughput": "the machine's time for a request when others wait",
    "context": "the longest sequence, then how many tokens the cache holds",
}


def bar_s(pair: Pair, best: Pair, setting: Setting, work: Workload) -> float:
    """Error of the difference of two pairs in the seconds of the goal."""

    def of(one: StepPrediction, other: StepPrediction, times: float, times_other: float) -> float:
        ours, theirs = one.exposed * times, other.exposed * times_other
        return ours.difference_error_s(theirs, setting.errors)

    share = 0.1 if work.goal == "ttft" else 1.0
    tokens = work.prompt_tokens

    def prompts(p: StepPrediction) -> float:
        spread = p.layout.replicas if work.goal == "throughput" else 1
        return tokens / p.size.rows / spread

    def answers(p: StepPrediction) -> float:
        spread = p.layout.replicas * p.size.rows if work.goal == "throughput" else 1
        return share * work.answer_tokens / spread

    prefill = of(pair.prefill, best.prefill, prompts(pair.prefill), prompts(best.prefill))
    decode = of(pair.decode, best.decode, answers(pair.decode), answers(best.decode))
    return (prefill**2 + decode**2) ** 0.5
