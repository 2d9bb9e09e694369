"""What a back-test predicts with: prefill rate, cache capacity, P95 of a load, seconds of a step.

Each is a frozen record of inputs with one figure. Steps and caches are predicted by the search's
own functions (search/predict.py, search/memory.py): no figure here has a cost model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

from kernels.cost_model.exchange import bus_exchange
from kernels.cost_model.rates import DeviceRates, flat_rates, product_rates
from kernels.hardware.products import load_product
from llm_engine.plan.families import preset
from llm_engine.plan.load import Load, ttft_s
from llm_engine.plan.queueing import ServiceTimes
from llm_engine.plan.request import PlanRequest
from llm_engine.plan.search.layout import Layout
from llm_engine.plan.search.memory import token_bytes
from llm_engine.plan.search.model_steps import ModelSteps
from llm_engine.plan.search.predict import Setting
from llm_engine.plan.search.prediction import StepPrediction, StepSize
from llm_engine.plan.search.prompt import prompt_steps

LAYOUTS = ("tp", "tp-ep", "dp-ep", "cp-agrs", "cp-ep")
# A card of one rate counts what memory takes in that rate.
_NO_BOUND_BYTES_S = 1e18
_PRODUCTS = ("dense_flops_s", "fp8_flops_s", "expert_flops_s", "expert_4bit_flops_s")


class Predictor(Protocol):
    """Inputs that give one figure."""

    @property
    def figure(self) -> float:
        """The figure, in the unit of the chain."""
        ...


@cache
def steps_of(model: str, *, all_layers: bool = False) -> ModelSteps:
    """The steps of a preset with cached rows in fp8, as all published figures have them."""
    raw = {**preset(model), "prefills_all_layers": all_layers}
    return ModelSteps(raw, PlanRequest(cache="fp8"), model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Prefill rate of `prompts` of `context` tokens on cards joined by links, in tokens a second.

    Either `product` names the card, whose data sheet and table of efficiencies give its rates, or
    `card_tflops` is what the kernels of one card reach over the whole step. `product_tflops` is
    that of products alone, where weights have a format that the table does not know. A step takes
    `chunk` rows of a prompt; with "dp-ep" each card attends to prompts of its own, all at the same
    time; `all_layers`: without the bounded replay of DeepSeek-V4.1. `num_chunks` of a step
    overlap; `shards` cards divide the cached rows of a prompt, which each chunk gathers;
    `hides_all`: the shorter of computation and transfer costs nothing, which is a limit.
    `fan_ratio` is the rate of an all-to-all over that of a ring.
    Raises: ValueError for a layout or wire that is not known, or a card that is given twice or not.
    """

    model: str
    context: int
    cards: int
    ring_gb_s: float
    prompts: int = 1
    card_tflops: float = 0.0
    product: str = ""
    product_tflops: float = 0.0
    kernel_gain: float = 1.0
    layout: str = "tp"
    wire: str = "bf16"
    num_chunks: int = 1
    shards: int = 1
    hides_all: bool = False
    all_layers: bool = False
    fan_ratio: float = 0.5
    latency_us: float = 6.0
    chunk: int = 8192

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS or self.wire not in ("bf16", "int8"):
            raise ValueError(
                f"layout {self.layout!r} with wire {self.wire!r}: layouts are "
                f"{', '.join(LAYOUTS)}, wires are bf16 and int8"
            )
        if (self.card_tflops > 0) == bool(self.product):
            raise ValueError(
                f"card_tflops is {self.card_tflops:g} and product {self.product!r}: exactly one "
                "of them says how fast a card is"
            )

    @property
    def steps(self) -> tuple[StepPrediction, ...]:
        """The chunks of a prompt, each predicted as the search does it; with dp, of one on each."""
        return self._steps(min(self.prompts, self._layout().dp))

    @property
    def figure(self) -> float:
        """Tokens a second."""
        side_by_side = self._layout().dp
        full, left = divmod(self.prompts, side_by_side)
        seconds = full * self._seconds(side_by_side) if full else 0.0
        seconds += self._seconds(left) if left else 0.0
        return self.prompts * self.context / seconds

    def _seconds(self, batch: int) -> float:
        """Of so many prompts side by side."""
        steps = self._steps(batch)
        if not self.hides_all:
            return sum(step.seconds for step in steps)
        wires = [(step, step.parts.wire + step.parts.latency) for step in steps]
        return sum(max(step.parts.total_s - wire_s, wire_s) for step, wire_s in wires)

    def _steps(self, batch: int) -> tuple[StepPrediction, ...]:
        setting = Setting(
            rates=self._rates(),
            exchange=bus_exchange(
                self.ring_gb_s * 1e9, fan_share=self.fan_ratio, latency_s=self.latency_us * 1e-6
            ),
            num_devices=self.cards,
        )
        chunk = min(self.chunk, self.context)
        steps = steps_of(self.model, all_layers=self.all_layers)
        return prompt_steps(steps, setting, self._layout(), chunk, self.context, batch)

    def _layout(self) -> Layout:
        whole = Layout(wire=self.wire, num_chunks=self.num_chunks, kv_shard=self.shards)
        if self.layout in ("tp", "tp-ep"):
            experts = "columns" if self.layout == "tp" else "reduce"
            return replace(whole, tp=self.cards, experts=experts)
        if self.layout == "dp-ep":
            return replace(whole, dp=self.cards, experts="gather")
        experts = "gather" if self.layout == "cp-agrs" else "exchange"
        return replace(whole, cp=self.cards, experts=experts)

    def _rates(self) -> DeviceRates:
        if self.product:
            found = product_rates(load_product(self.product), has_fp8_math=True)
            if self.product_tflops:
                found = replace(found, **dict.fromkeys(_PRODUCTS, self.product_tflops * 1e12))
            return found.scaled(flops=self.kernel_gain)
        flops_s = self.card_tflops * 1e12 * self.kernel_gain
        return flat_rates(flops_s, _NO_BOUND_BYTES_S, memory_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCapacity:
    """Tokens that the caches of all cards hold when `shards` of them split each sequence.

    `memory_gb` is the room of one card; replicated indexer keys stay whole on every card.
    """

    model: str
    memory_gb: float
    shards: int = 1
    replicates_index: bool = False

    @property
    def figure(self) -> float:
        """Tokens."""
        steps = steps_of(self.model)
        rows = steps.at(StepSize(phase="decode", rows=1, context=1)).rows
        layout = Layout(tp=self.shards, kv_shard=self.shards)
        replicated = "indexer" if self.replicates_index else ""
        return self.memory_gb * 1e9 / token_bytes(rows, steps.facts, layout, replicated=replicated)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLatency:
    """P95 of TTFT in seconds of `clients` who wait for each answer."""

    clients: int
    prompt_tokens: float
    answer_tokens: int
    decode_s: float
    prefill_tokens_s: float
    kv_tokens: float

    @property
    def figure(self) -> float:
        """Seconds."""
        load = Load(
            prompt_tokens=round(self.prompt_tokens),
            answer_tokens=self.answer_tokens,
            num_clients=self.clients,
        )
        times = ServiceTimes(
            prefill_s_per_token=1 / self.prefill_tokens_s,
            decode_s=self.decode_s,
            kv_tokens=self.kv_tokens,
        )
        return ttft_s(load, times, 95).value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipStep:
    """Steps an hour of a video transformer with its sequence spread over the cards."""

    linear_pflop: float
    attention_pflop: float
    sent_gb: float
    cards: int
    linear_tflops: float
    attention_tflops: float
    link_gb_s: float
    hidden: float = 0.0
    wire_ratio: float = 1.0
    attention_gain: float = 1.0
    linear_gain: float = 1.0
    reuse_gain: float = 1.0

    @property
    def figure(self) -> float:
        """3600 over the seconds of a step."""
        linear_s = self.linear_pflop * 1e3 / (self.cards * self.linear_tflops * self.linear_gain)
        attention_s = (
            self.attention_pflop * 1e3 / (self.cards * self.attention_tflops * self.attention_gain)
        )
        compute_s, wire_s = linear_s + attention_s, self.sent_gb * self.wire_ratio / self.link_gb_s
        step_s = compute_s + wire_s - self.hidden * min(compute_s, wire_s)
        return 3600 * self.reuse_gain / step_s


PREDICTORS: Mapping[str, type[Predictor]] = {
    "prefill": Prefill,
    "capacity": CacheCapacity,
    "tail": TailLatency,
    "clip": ClipStep,
}
