"""What a back-test predicts with: prefill rate, cache capacity, P95 of a load, seconds of a step.

Each is a frozen record of inputs with one figure. Work comes from the models' own op costs and
exchanges from the collectives' formulas, so no figure here has a cost model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from kernels.collectives import costs
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.families import describe, preset
from llm_engine.plan.load import Load, ttft_s
from llm_engine.plan.queueing import ServiceTimes
from llm_engine.plan.request import PlanRequest

LAYOUTS = ("tp", "cp-agrs", "cp-ep")
_KV_ROW_BYTES = 1200  # gathered for a token and a layer under context parallelism: upper bound
_ACTIVATION_BYTES = 2


class Predictor(Protocol):
    """Inputs that give one figure."""

    @property
    def figure(self) -> float:
        """The figure, in the unit of the chain."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWork:
    """What a token of a prompt costs. Units: operations; `layers` run on every prompt token."""

    flops_per_token: float
    layers: int
    width: int
    experts_per_token: int


@cache
def work_of(model: str, context: int) -> ModelWork:
    """The mean over a whole prompt of `context` tokens of a preset."""
    fields = ConfigFields(preset(model))
    request = PlanRequest(prefill_tokens=context, context=context, cache="fp8")
    phase = describe(preset(model), request, name=model).phase("prefill")
    flops = sum(g.num_layers * u.count * u.cost.flops for g in phase.groups for u in g.uses)
    sources = fields.counts("kv_source_layer_ids")
    return ModelWork(
        flops_per_token=flops / context,
        layers=max(sources) if sources else fields.count("num_hidden_layers"),
        width=fields.count("hidden_size"),
        experts_per_token=fields.count("num_experts_per_tok"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Prefill rate of a model on cards joined by links, in tokens a second.

    `card_tflops` is what the kernels of one card reach over the whole step; `hidden` the share of
    the shorter of computation and transfer that runs under the longer; `fan_ratio` the rate of an
    all-to-all over that of a ring.
    Raises: ValueError for a layout or wire that is not known.
    """

    model: str
    context: int
    cards: int
    card_tflops: float
    ring_gb_s: float
    kernel_gain: float = 1.0
    layout: str = "tp"
    wire: str = "bf16"
    hidden: float = 0.0
    fan_ratio: float = 0.5
    latency_us: float = 6.0
    chunk: int = 8192

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS or self.wire not in ("bf16", "int8"):
            raise ValueError(
                f"layout {self.layout!r} with wire {self.wire!r}: layouts are "
                f"{', '.join(LAYOUTS)}, wires are bf16 and int8"
            )

    @property
    def compute_s(self) -> float:
        """Of one token."""
        work = work_of(self.model, self.context)
        return work.flops_per_token / (self.cards * self.card_tflops * self.kernel_gain * 1e12)

    @property
    def wire_s(self) -> float:
        """Of one token, everything that it sends."""
        work, ring = work_of(self.model, self.context), self.ring_gb_s * 1e9
        link = costs.LinkCosts(
            latency_s=self.latency_us * 1e-6, ring_bytes_s=ring, fan_bytes_s=ring * self.fan_ratio
        )
        ratio = costs.INT8_RATIO if self.wire == "int8" else 1.0
        hidden_bytes = self.chunk * work.width * _ACTIVATION_BYTES * ratio
        rows_s = costs.half_ring_s(self.chunk * _KV_ROW_BYTES, self.cards, link)
        if self.layout == "tp":
            layer_s = 2 * costs.ring_s(hidden_bytes, self.cards, link)
        elif self.layout == "cp-agrs":
            layer_s = 2 * costs.half_ring_s(hidden_bytes, self.cards, link) + rows_s
        else:
            reached = self.cards * (1 - (1 - 1 / self.cards) ** work.experts_per_token)
            sent = hidden_bytes * reached / self.cards
            layer_s = 2 * costs.all_to_all_s(sent, self.cards, link) + rows_s
        return work.layers * layer_s / self.chunk

    @property
    def figure(self) -> float:
        """Tokens a second."""
        compute_s, wire_s = self.compute_s, self.wire_s
        return 1 / (compute_s + wire_s - self.hidden * min(compute_s, wire_s))


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
        request = PlanRequest(cache="fp8")
        rows = describe(preset(self.model), request, name=self.model).rows
        whole = sum(
            group.bytes_per_token
            / (1 if self.replicates_index and "indexer" in group.name else self.shards)
            for group in rows
        )
        return self.memory_gb * 1e9 / whole


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
