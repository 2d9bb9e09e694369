"""The ops an engine runs: each chosen once, from facts, recorded, and bound to its function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.dispatch import AUTO, choose
from kernels.dtypes import DTYPE_NAMES
from kernels.errors import ImplUnavailable
from kernels.ledger import Decision, Ledger, Rejection
from kernels.ops.registry import op_spec
from kernels.runtime import device_traits
from kernels.spec import Case, OpSpec, Tier
from llm_engine.errors import InvalidConfig
from llm_engine.layers.linear import can_pack
from llm_engine.layers.rotary import turn_and_insert
from llm_engine.layers.single_decode import SingleDecode
from llm_engine.model_config import ModelConfig

Op = Callable[..., Any]
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
    "measured on a CPU at 49152 tokens, op against the engine's: one greedy row 123 and 57 µs, one "
    "row at temperature 0.8 927 and 263 µs, 8 greedy rows 628 and 380 µs, 8 rows at 0.8 2747 and "
    "3589 µs"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSizes:
    """The largest step that the ops are chosen for. Units: tokens, sequences, tokens a page."""

    chunk_tokens: int
    num_seqs: int
    context: int
    page_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundOps:
    """The functions that model and runner call, and the decisions behind them.

    Each op has one decision; `paged_decode` has a second one for steps that decode one sequence,
    which `single_decode` serves where it is not None.

    A call goes straight to the implementation: signatures are those of `kernels.ops`, without
    checks and without `impl`. Two decisions bind no function here: `gemm`, which `layers.linear`
    hands to the vendor's library, and `sampler`, which is `llm_engine.sampler`.
    """

    rms_norm: Op
    swiglu: Op
    rotary_insert: Op
    paged_prefill: Op
    paged_decode: Op
    single_decode: type[SingleDecode] | None
    decisions: tuple[Decision, ...]

    @property
    def names(self) -> tuple[tuple[str, str, str], ...]:
        """(op, implementation, tier) of every decision."""
        return tuple((d.what, d.chosen, str(d.tier)) for d in self.decisions)


def bind_ops(
    config: ModelConfig,
    dtype: torch.dtype,
    sizes: OpSizes,
    *,
    asked: Mapping[str, str],
    ledger: Ledger,
) -> BoundOps:
    """Choose each op for the model's shapes on the CPU, record why, and import what was chosen.

    `asked` names implementations by op; a request is met or refused, never replaced.
    Raises: InvalidConfig for an op that the engine does not run; ImplUnavailable.
    """
    cases = _cases(config, DTYPE_NAMES[dtype], sizes)
    unknown = sorted(set(asked) - set(cases))
    if unknown:
        raise InvalidConfig(
            f"kernels names {', '.join(unknown)}, but the engine runs {', '.join(cases)}"
        )
    decisions: list[Decision] = []
    functions: dict[str, Op] = {}
    for name, case in cases.items():
        decide = _DECIDE.get(name, _choose)
        spec = op_spec(name)
        decision = ledger.record(decide(spec, case, asked.get(name, AUTO)))
        decisions.append(decision)
        if name == "rotary_insert" and decision.chosen == ENGINE:
            functions[name] = turn_and_insert
        elif name not in ("gemm", "sampler"):
            functions[name] = spec.find(decision.chosen).load()
    single_decode = None
    if asked.get("paged_decode", AUTO) == AUTO:
        single_decode = SingleDecode
        decisions.append(ledger.record(_single_decode(decisions, cases["paged_decode"])))
    return BoundOps(**functions, single_decode=single_decode, decisions=tuple(decisions))


def _choose(spec: OpSpec, case: Case, asked: str) -> Decision:
    try:
        return choose(spec, case, device_traits("cpu"), asked=asked, where=WHERE)
    except KeyError as error:
        raise ImplUnavailable(str(error.args[0])) from error


def _own(op: Decision, reason: str, *, asked: str = AUTO) -> Decision:
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


def _single_decode(decisions: Sequence[Decision], case: Case) -> Decision:
    """One sequence alone: the engine's own function does once a step what the op repeats."""
    (batched,) = [decision for decision in decisions if decision.what == "paged_decode"]
    alone = replace(case, sizes={**case.sizes, "B": 1})
    return replace(_own(batched, SINGLE_REASON), where=WHERE_SINGLE, case=str(alone))


def _rotary(spec: OpSpec, case: Case, asked: str) -> Decision:
    """The engine's own function unless the op was asked for."""
    if asked not in (AUTO, ENGINE):
        return _choose(spec, case, asked)
    return _own(_choose(spec, case, AUTO), ROTARY_REASON, asked=asked)


def _gemm(spec: OpSpec, case: Case, asked: str) -> Decision:
    """The vendor's product, with the layout in which `layers.linear` hands it the weights."""
    is_packed = case.dtype == "bf16" and can_pack(torch.empty(0, dtype=torch.bfloat16))
    layout = "in oneDNN's blocks, packed once at load" if is_packed else "row-major"
    return replace(_choose(spec, case, asked), reasons=(f"weights lie {layout}",))


def _sampler(spec: OpSpec, case: Case, asked: str) -> Decision:
    """The engine's own sampler: faster at few rows, and a seed keeps drawing the same tokens."""
    if asked not in (AUTO, ENGINE):
        raise ImplUnavailable(
            f"{spec.name}: {asked!r} was asked for, but the engine draws with its own sampler: "
            f"a seed's tokens follow its generator. Ask for 'auto' or {ENGINE!r}."
        )
    return _own(_choose(spec, case, AUTO), SAMPLER_REASON, asked=asked)


_DECIDE: Mapping[str, Callable[[OpSpec, Case, str], Decision]] = {
    "gemm": _gemm,
    "rotary_insert": _rotary,
    "sampler": _sampler,
}


def _cases(config: ModelConfig, dtype: str, sizes: OpSizes) -> dict[str, Case]:
    """What the engine asks of each op, at its largest step."""
    heads = {"H": config.num_heads, "K": config.num_kv_heads, "D": config.head_dim}
    tokens, page = {"T": sizes.chunk_tokens}, {"page": sizes.page_size}
    paged = {"S": sizes.context} | heads | page
    product = {"M": sizes.chunk_tokens, "N": 2 * config.intermediate_size, "K": config.hidden_size}
    is_plain = {"window": "none", "sink": "none"}
    rotary = {"style": "half", "qk_norm": "none", "inverse": "none", "cache": dtype}
    asked: dict[str, tuple[dict[str, int], dict[str, str]]] = {
        "rms_norm": (tokens | {"D": config.hidden_size}, {"quant": "none", "residual": "yes"}),
        "swiglu": (tokens | {"I": config.intermediate_size}, {"clamp": "none", "quant": "none"}),
        "rotary_insert": (tokens | heads | {"R": config.head_dim} | page, rotary),
        "paged_prefill": (tokens | paged, is_plain),
        "paged_decode": ({"B": sizes.num_seqs} | paged, is_plain),
        "gemm": (product, {}),
        "sampler": ({"B": sizes.num_seqs, "V": config.vocab_size}, {"top": "yes"}),
    }
    return {
        name: Case(dtype="fp32" if name == "sampler" else dtype, sizes=numbers, options=options)
        for name, (numbers, options) in asked.items()
    }
