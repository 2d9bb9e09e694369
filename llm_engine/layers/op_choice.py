"""Which implementation runs each op of an engine: and where the engine's own is better."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from kernels.dispatch import AUTO, choose
from kernels.errors import ImplUnavailable
from kernels.ledger import Decision, Rejection
from kernels.spec import Case, OpSpec, Tier
from kernels.tuned import tuned_table
from llm_engine.device import EngineDevice
from llm_engine.layers.linear import can_pack
from llm_engine.model_config import ModelConfig

WHERE = "llm engine, all layers"
WHERE_SINGLE = "llm engine, all layers, steps that decode one sequence"
ENGINE = "engine"  # what a decision calls a function of the engine's own
SINGLE_REASON = (
    "measured on a CPU with 9 query and 3 key/value heads of 64, op against the engine's: 38 and "
    "25 µs at 65 cached tokens, 99 and 83 µs at 501"
)
ROTARY_REASON = (
    "measured on a CPU with 9 query and 3 key heads of 64, op against the engine's: 23 and 19 µs "
    "for one token, 29 and 25 for 8, 364 and 358 for 512"
)
SAMPLER_REASON = (
    "measured on one thread of a busy CPU at 49152 tokens, least of many runs, op against the "
    "engine's: one greedy row 181 and 46 µs, one row at temperature 0.8 1269 and 415 µs, 8 greedy "
    "rows 1070 and 155 µs, 8 rows at 0.8 8013 and 1751 µs"
)
DEVICE_SAMPLER_REASON = (
    "rows with penalties, a bias, a grammar or log probabilities are copied and drawn by the "
    "processor, by the same numbers"
)
HOST_SAMPLER_REASON = "asked for: all logits are copied to the processor, which draws"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSizes:
    """The largest step that the ops are chosen for. Units: tokens, sequences, tokens a page."""

    chunk_tokens: int
    num_seqs: int
    context: int
    page_size: int


def choose_op(spec: OpSpec, case: Case, asked: str, device: EngineDevice) -> Decision:
    """The implementation of an op. Raises: ImplUnavailable for one that cannot be met."""
    traits = device.traits
    try:
        tuned = tuned_table(traits.name)
        return choose(spec, case, traits, asked=asked, tuned=tuned, where=WHERE)
    except KeyError as error:
        raise ImplUnavailable(str(error.args[0])) from error


def own(op: Decision, reason: str, *, asked: str = AUTO) -> Decision:
    """The engine's own function in place of the op's choice, with what was measured."""
    return replace(
        op,
        asked=asked,
        chosen=ENGINE,
        tier=Tier.FUSED,
        source="explicit" if asked == ENGINE else "tuned",
        reasons=(reason,),
        rejected=(*op.rejected, Rejection(candidate=op.chosen, reasons=(reason,))),
        evidence="run on CPU; answers compared with transformers",
        remedy="",
    )


def decide_single_decode(decisions: Sequence[Decision], case: Case) -> Decision:
    """One sequence alone: the engine's own function does once a step what the op repeats."""
    (batched,) = [decision for decision in decisions if decision.what == "paged_decode"]
    alone = replace(case, sizes={**case.sizes, "B": 1})
    return replace(own(batched, SINGLE_REASON), where=WHERE_SINGLE, case=str(alone))


def _rotary(spec: OpSpec, case: Case, asked: str, device: EngineDevice) -> Decision:
    """On a CPU the engine's own function unless the op was asked for."""
    if asked == ENGINE or (asked == AUTO and device.is_cpu):
        return own(choose_op(spec, case, AUTO, device), ROTARY_REASON, asked=asked)
    return choose_op(spec, case, asked, device)


def _gemm(spec: OpSpec, case: Case, asked: str, device: EngineDevice) -> Decision:
    """The vendor's product, with the layout in which `layers.linear` hands it the weights."""
    is_here = case.dtype == "bf16" and device.place.type == "cpu"
    is_packed = is_here and can_pack(torch.empty(0, dtype=torch.bfloat16))
    layout = "in oneDNN's blocks, packed once at load" if is_packed else "row-major"
    return replace(choose_op(spec, case, asked, device), reasons=(f"weights lie {layout}",))


def _sampler(spec: OpSpec, case: Case, asked: str, device: EngineDevice) -> Decision:
    """On a CPU the engine's own: faster, and its threads are the caller's alone."""
    if not device.is_cpu:
        return _device_sampler(spec, case, asked, device)
    if asked not in (AUTO, ENGINE):
        raise ImplUnavailable(
            f"{spec.name}: {asked!r} was asked for, but the engine draws with its own sampler: "
            f"a seed's tokens follow its one number a token. Ask for 'auto' or {ENGINE!r}."
        )
    return own(choose_op(spec, case, AUTO, device), SAMPLER_REASON, asked=asked)


def _device_sampler(spec: OpSpec, case: Case, asked: str, device: EngineDevice) -> Decision:
    """The op where the logits are, unless the engine's own, on the processor, was asked for."""
    if asked == ENGINE:
        return own(choose_op(spec, case, AUTO, device), HOST_SAMPLER_REASON, asked=asked)
    decision = choose_op(spec, case, asked, device)
    return replace(decision, reasons=(*decision.reasons, DEVICE_SAMPLER_REASON))


DECIDE: Mapping[str, Callable[[OpSpec, Case, str, EngineDevice], Decision]] = {
    "gemm": _gemm,
    "rotary_insert": _rotary,
    "sampler": _sampler,
}


def op_cases(config: ModelConfig, dtype: str, sizes: OpSizes) -> dict[str, Case]:
    """What the engine asks of each op, at its largest step; `form_choice` asks for the others."""
    heads = {"H": config.num_heads, "K": config.num_kv_heads, "D": config.head_dim}
    tokens, page = {"T": sizes.chunk_tokens}, {"page": sizes.page_size}
    paged = {"S": sizes.context} | heads | page
    product = {"M": sizes.chunk_tokens, "N": 2 * config.intermediate_size, "K": config.hidden_size}
    masked = {"window": _yes(config.windows is not None), "sink": _yes(config.has_sinks)}
    gate = {"clamp": _yes(config.gate.clamp is not None), "gain": _yes(config.gate.has_gain)}
    rotary = {"style": "half", "qk_norm": "none", "inverse": "none", "cache": dtype}
    asked: dict[str, tuple[dict[str, int], dict[str, str]]] = {
        "rms_norm": (tokens | {"D": config.hidden_size}, {"quant": "none", "residual": "yes"}),
        "swiglu": (tokens | {"I": config.intermediate_size}, gate | {"quant": "none"}),
        "rotary_insert": (tokens | heads | {"R": config.head_dim} | page, rotary),
        "paged_prefill": (tokens | paged, masked),
        "paged_decode": ({"B": sizes.num_seqs} | paged, masked),
        "gemm": (product, {}),
        "sampler": ({"B": sizes.num_seqs, "V": config.vocab_size}, {"top": "yes"}),
    }
    if config.moe is not None:
        routed = tokens | {"E": config.moe.num_experts, "k": config.moe.num_experts_per_token}
        asked["moe_router"] = (routed | {"G": 1}, {"score": "softmax"})
    return {
        name: Case(dtype="fp32" if name == "sampler" else dtype, sizes=numbers, options=options)
        for name, (numbers, options) in asked.items()
    }


def _yes(is_there: bool) -> str:
    return "yes" if is_there else "none"
