"""In which forms weights stay in memory: what the files hold and the products can take."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from kernels.dispatch import AUTO
from kernels.dtypes import DTYPE_NAMES
from kernels.errors import ImplUnavailable
from kernels.ledger import Decision, Rejection
from kernels.ops.registry import op_spec
from kernels.spec import Case, OpSpec, Tier
from llm_engine.config import EngineConfig
from llm_engine.device import EngineDevice
from llm_engine.layers.kept_forms import NUMBERS, KeptForms, Op
from llm_engine.layers.op_choice import ENGINE, choose_op, own
from llm_engine.model_config import ModelConfig
from llm_engine.weights.facts import IN_NUMBERS, StoredForm, WeightFacts

FP8_GEMM, MOE_GEMM = "block_fp8_gemm", "moe_gemm"
REFERENCE = "torch"  # decodes all weights at every call: never taken unless asked for
FP8_REASON = (
    "weights stay in e4m3, a byte each, with the scales of their blocks; rows keep the engine's "
    "dtype, so that nothing is rounded that the files did not round"
)
DECODED_REASON = "decoded once as they are read: their products are those of gemm"
GROUPED_REASON = (
    "all experts of a layer in one product; how many tokens each has stays on the device"
)
LOOPED_REASON = (
    "an expert after the other, each map a product of the library, once the processor has been "
    "told how many tokens each expert has"
)
EXPERTS_REASON = (
    "its experts lie in the layout of the other linear maps, packed where those are; measured on a "
    "CPU without bfloat16 units, 8 of 32 experts of 2048 x 768 in float32, op against the "
    "engine's: 16.2 and 16.3 ms for one token, 112 and 106 for 8"
)
UPDATES_REASON = "adapters may update single experts, and the grouped product takes no update"
RANKS_EXPERTS_REASON = "ranks take slices of single experts, which stacked ones do not give"
RANKS_BLOCKS_REASON = "ranks take slices of matrices, which need not begin where a block does"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormQuestion:
    """What the choice depends on. Units: `num_rows` rows of a step that decodes.

    `stored` is what the files hold; `against` says why none of it may stay so, and `alone` why
    experts are applied one by one; `asked` names implementations by op.
    """

    model: ModelConfig
    dtype: torch.dtype
    num_rows: int
    device: EngineDevice
    stored: StoredForm = IN_NUMBERS
    asked: Mapping[str, str] = field(default_factory=dict[str, str])
    against: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()

    @classmethod
    def of_engine(
        cls,
        config: EngineConfig,
        model: ModelConfig,
        dtype: torch.dtype,
        device: EngineDevice,
        facts: WeightFacts | None,
    ) -> "FormQuestion":
        """As an engine's settings and the headers of its files put it."""
        against: list[str] = []
        if config.weights == "unpacked":
            against.append("weights is unpacked")
        if config.dtype != "auto":
            against.append(f"dtype is {config.dtype}: an explicit dtype means unpacked weights")
        against += [RANKS_BLOCKS_REASON] if config.layout else []
        alone = [RANKS_EXPERTS_REASON] if config.layout else []
        alone += [UPDATES_REASON] if config.adapters else []
        return cls(
            model=model,
            dtype=dtype,
            num_rows=config.max_num_seqs,
            device=device,
            stored=IN_NUMBERS if facts is None else facts.stored,
            asked=config.kernels,
            against=tuple(against),
            alone=tuple(alone),
        )

    def case(self, sizes: Mapping[str, int], options: Mapping[str, str]) -> Case:
        """A case in the engine's dtype."""
        return Case(dtype=DTYPE_NAMES[self.dtype], sizes=sizes, options=options)

    def asked_of(self, op: str) -> str:
        """The implementation that is asked for."""
        return self.asked.get(op, AUTO)


def choose_forms(question: FormQuestion) -> KeptForms:
    """The forms, each with its product and its decision.

    Raises: ImplUnavailable for an implementation that was asked for and cannot be had.
    """
    forms = KeptForms()
    if question.stored.fp8_block is not None:
        gemm, decision = _fp8_gemm(question, question.stored.fp8_block)
        forms = replace(forms, fp8_gemm=gemm, decisions=(decision,))
    if question.model.moe is None:
        return forms
    kind, decision = _experts(question)
    forms = replace(forms, decisions=(*forms.decisions, decision))
    if kind is None:
        return forms
    return replace(
        forms,
        moe_gemm=partial(_loaded(decision), **question.model.gate.options),
        experts=kind,
        counts_on_device=decision.chosen != REFERENCE,
    )


def _loaded(decision: Decision) -> Op:
    return op_spec(decision.what).find(decision.chosen).load()


def _fp8_gemm(question: FormQuestion, block: int) -> tuple[Op | None, Decision]:
    """The product of matrices in blocks; None where they are decoded as they are read."""
    spec, model = op_spec(FP8_GEMM), question.model
    asked = question.asked_of(FP8_GEMM)
    _check_wish(spec, asked, question.against)
    sizes = {"M": question.num_rows, "N": 2 * model.intermediate_size, "K": model.hidden_size}
    case = question.case(sizes, {"block": f"{block}x{block}", "x": "wide"})
    wish = AUTO if asked == ENGINE else asked
    decision = choose_op(spec, case, wish, question.device)
    is_found = asked not in (AUTO, ENGINE) or decision.chosen != REFERENCE
    if is_found and asked != ENGINE and not question.against:
        decision = replace(decision, reasons=(*decision.reasons, FP8_REASON))
        return _loaded(decision), decision
    why = ("asked for",) if asked == ENGINE else question.against
    why = why or ("it decodes all weights at every call",)
    return None, replace(
        decision,
        asked=asked,
        chosen=ENGINE,
        tier=Tier.VENDOR,
        source="explicit" if asked == ENGINE else "default",
        reasons=(
            f"{DECODED_REASON}, over {question.dtype.itemsize} bytes a weight instead of one",
        ),
        rejected=(*decision.rejected, Rejection(candidate=decision.chosen, reasons=why)),
        evidence=question.device.evidence,
        remedy="",
    )


def _experts(question: FormQuestion) -> tuple[str | None, Decision]:
    """The format in which experts are stacked, None where each is applied by itself."""
    spec, asked = op_spec(MOE_GEMM), question.asked_of(MOE_GEMM)
    if question.device.is_cpu:
        _check_wish(
            spec,
            asked,
            ("the engine's experts lie in the layout of its linear maps, which no other reads",),
        )
        decision = choose_op(spec, _experts_case(question, NUMBERS), AUTO, question.device)
        return None, own(decision, EXPERTS_REASON, asked=asked)
    _check_wish(spec, asked, question.alone)
    if asked == ENGINE or question.alone:
        return None, _looped(question, question.alone or ("asked for",))
    rejected: list[Rejection] = []
    for kind in dict.fromkeys((question.stored.experts, NUMBERS)):
        reasons = _unfit(question, kind)
        if not reasons:
            decision = choose_op(spec, _experts_case(question, kind), asked, question.device)
            if asked != AUTO or decision.chosen != REFERENCE:
                return kind, replace(
                    decision,
                    reasons=(*decision.reasons, GROUPED_REASON),
                    rejected=(*rejected, *decision.rejected),
                )
            reasons = tuple(reason for each in decision.rejected for reason in each.reasons)
        rejected.append(Rejection(candidate=f"experts in {kind}", reasons=reasons))
    return None, _looped(question, ("it decodes all weights at every call",), rejected)


def _unfit(question: FormQuestion, kind: str) -> tuple[str, ...]:
    """Why the files' format of the experts may not stay."""
    moe, block = question.model.moe, question.stored.fp8_block
    if kind == NUMBERS or moe is None:
        return ()
    if kind == "fp8" and block is not None and moe.intermediate_size % block:
        return (
            *question.against,
            f"gate and up have {moe.intermediate_size} rows, no multiple of {block}: below one "
            "another, a scale would be for rows of both",
        )
    return question.against


def _looped(
    question: FormQuestion, why: tuple[str, ...], rejected: list[Rejection] | None = None
) -> Decision:
    """The decision for one expert after the other on a device."""
    asked = question.asked_of(MOE_GEMM)
    case = _experts_case(question, NUMBERS)
    found = choose_op(op_spec(MOE_GEMM), case, AUTO, question.device)
    passed_over = found.rejected if rejected is None else rejected
    return replace(
        found,
        asked=asked,
        chosen=ENGINE,
        tier=Tier.GENERIC,
        source="explicit" if asked == ENGINE else "default",
        reasons=(LOOPED_REASON,),
        rejected=(*passed_over, Rejection(candidate=found.chosen, reasons=why)),
        evidence=question.device.evidence,
        remedy="serve merged weights" if why == (UPDATES_REASON,) else found.remedy,
    )


def _experts_case(question: FormQuestion, kind: str) -> Case:
    moe, gate = question.model.moe, question.model.gate
    assert moe is not None
    sizes = {
        "T": question.num_rows,
        "E": moe.num_experts,
        "k": moe.num_experts_per_token,
        "D": question.model.hidden_size,
        "I": moe.intermediate_size,
    }
    options = {"weights": kind}
    options |= {} if gate.clamp is None else {"clamp": "yes"}
    options |= {"gain": "yes"} if gate.has_gain else {}
    options |= {"bias": "yes"} if moe.has_biases else {}
    return question.case(sizes, options)


def _check_wish(spec: OpSpec, asked: str, against: tuple[str, ...]) -> None:
    """Raises: ImplUnavailable where an op is asked for that something speaks against."""
    if asked not in (AUTO, ENGINE) and against:
        raise ImplUnavailable(
            f"{spec.name}: {asked!r} was asked for, but {'; '.join(against)}. Ask for 'auto' or "
            f"{ENGINE!r}."
        )
