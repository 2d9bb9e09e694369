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

LAYOUTS = ("tp", "tp-ep", "cp-agrs", "cp-ep")
# A card of one rate counts what memory takes in that rate.
_NO_BOUND_BYTES_S = 1e18


class Predictor(Protocol):
    """Inputs that give one figure."""

    @property
    def figure(self) -> float:
        """The figure, in the unit of the chain."""
        ...


@cache
def steps_of(model: str) -> ModelSteps:
    """The steps of a preset with cached rows in fp8, as all published figures have them."""
    return ModelSteps(preset(model), PlanRequest(cache="fp8"), model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Prefill rate of one prompt of `context` tokens on cards joined by links, in tokens a second.

    Either `product` names the card, whose data sheet and table of efficiencies give its rates, or
    `card_tflops` is what the kernels of one card reach over the whole step. `num_chunks` of a step
    overlap; `shards` cards divide the cached rows of a prompt, which each chunk gathers;
    `hides_all`: the shorter of computation and transfer costs nothing, which is a limit.
    `fan_ratio` is the rate of an all-to-all over that of a ring.
    Raises: ValueError for a layout or wire that is not known, or a card that is given twice or not.
    """

    model: str
    context: int
    cards: int
    ring_gb_s: float
    card_tflops: float = 0.0
    product: str = ""
    kernel_gain: float = 1.0
    layout: str = "tp"
    wire: str = "bf16"
    num_chunks: int = 1
    shards: int = 1
    hides_all: bool = False
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
        """The chunks of the prompt, each predicted as the search does it."""
        setting = Setting(
            rates=self._rates(),
            exchange=bus_exchange(
                self.ring_gb_s * 1e9, fan_share=self.fan_ratio, latency_s=self.latency_us * 1e-6
            ),
            num_devices=self.cards,
        )
        chunk = min(self.chunk, self.context)
        return prompt_steps(steps_of(self.model), setting, self._layout(), chunk, self.context)

    @property
    def figure(self) -> float:
        """Tokens a second."""
        if not self.hides_all:
            return self.context / sum(step.seconds for step in self.steps)
        wires = [(step, step.parts.wire + step.parts.latency) for step in self.steps]
        longer = (max(step.parts.total_s - wire_s, wire_s) for step, wire_s in wires)
        return self.context / sum(longer)

    def _layout(self) -> Layout:
        whole = Layout(wire=self.wire, num_chunks=self.num_chunks, kv_shard=self.shards)
        if self.layout in ("tp", "tp-ep"):
            experts = "columns" if self.layout == "tp" else "reduce"
            return replace(whole, tp=self.cards, experts=experts)
        experts = "gather" if self.layout == "cp-agrs" else "exchange"
        return replace(whole, cp=self.cards, experts=experts)

    def _rates(self) -> DeviceRates:
        if self.product:
            found = product_rates(load_product(self.product), has_fp8_math=True)
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
