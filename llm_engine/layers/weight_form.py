"""Whether a model's quantised weights are computed in their packed form."""

from kernels.dispatch import choose
from kernels.ledger import Decision, Rejection
from kernels.native.library import instructions
from kernels.ops.registry import op_spec
from kernels.spec import Case, Tier
from llm_engine.config import EngineConfig
from llm_engine.device import EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.model_config import ModelConfig
from llm_engine.weights.facts import WeightFacts

PACKED, UNPACKED, AS_STORED = "packed", "unpacked", "as stored"
WHERE = "llm engine, all linear maps"
NATIVE = "native"
_MIB = 1 << 20
PACKED_REASON = (
    "the file's own precision is a fifth of float32's memory, and integers multiply faster than "
    "floats: on 2 cores with AVX2, SmolLM2-135M in 4 bits decodes several times faster than "
    "unpacked through torch"
)


def choose_weights(
    config: EngineConfig,
    model: ModelConfig,
    device: EngineDevice,
    *,
    is_quantised: bool,
    forms: KeptForms = PLAIN,
    facts: WeightFacts | None = None,
) -> tuple[bool, Decision]:
    """Whether weights stay packed for the native kernels, and the decision that says why.

    An explicit dtype means that precision for all weights: they are unpacked then. `forms` are
    those in which products other than the native ones read them.
    Raises: InvalidConfig where packed weights are asked for and cannot be had.
    """
    if forms.kept:
        return False, _as_stored(config, device, forms, facts)
    blocks = _blocks(config, model, device)
    problems: list[str] = []
    if not is_quantised:
        over = f" that layout {config.layout} leaves packed" if config.layout else " that packs"
        problems.append(f"the files do not hold every linear map in a quantised form{over}")
    if config.dtype != "auto":
        problems.append(f"dtype is {config.dtype}: an explicit dtype means unpacked weights")
    windows, wanted = model.windows, config.max_model_len
    if windows is not None and wanted is not None and wanted > windows.tokens:
        problems.append(
            f"native attention has no windows, and max_model_len is {wanted}, beyond the model's "
            f"of {windows.tokens}"
        )
    problems += [
        f"{block.what}: {reason}"
        for block in blocks
        for rejection in block.rejected
        if rejection.candidate == NATIVE
        for reason in rejection.reasons
    ]
    if config.weights == PACKED and problems:
        raise InvalidConfig(f"weights is packed, but {'; '.join(problems)}. Ask for auto.")
    if config.weights == UNPACKED:
        return False, _decision(config, UNPACKED, Tier.VENDOR, reasons=("asked for",))
    if problems:
        rejected = (Rejection(candidate=PACKED, reasons=tuple(problems)),)
        reasons = _cost(device, facts) if is_quantised else ()
        return False, _decision(config, UNPACKED, Tier.VENDOR, reasons=reasons, rejected=rejected)
    reasons = (PACKED_REASON, f"products of integers through {instructions()}")
    return True, _decision(config, PACKED, Tier.FUSED, reasons=reasons, evidence=blocks[0].evidence)


def _as_stored(
    config: EngineConfig, device: EngineDevice, forms: KeptForms, facts: WeightFacts | None
) -> Decision:
    sizes = ()
    if facts is not None:
        held, unpacked = forms.weight_bytes(facts) / _MIB, facts.unpacked_bytes / _MIB
        sizes = (f"all weights take {held:.0f} MiB, and would take {unpacked:.0f} MiB unpacked",)
    reasons = (f"{' and '.join(forms.kept)} stay so", *sizes)
    return _decision(config, AS_STORED, Tier.FUSED, reasons=reasons, evidence=device.evidence)


def _cost(device: EngineDevice, facts: WeightFacts | None) -> tuple[str, ...]:
    """What it costs that no product of a device reads integers with scales."""
    if device.is_cpu or facts is None:
        return ()
    held, unpacked = facts.packed_bytes / _MIB, facts.unpacked_bytes / _MIB
    return (
        f"no product reads integers with scales on a device: weights take {unpacked:.0f} MiB there "
        f"that would take {held:.0f} MiB packed, and each step reads as many more",
    )


def block_cases(
    model: ModelConfig, *, num_rows: int, page_size: int, is_packed: bool
) -> dict[str, Case]:
    """What the engine asks of the two blocks."""
    options = {"weights": PACKED if is_packed else UNPACKED}
    wide = {"N": num_rows, "C": model.hidden_size}
    heads = {"H": model.num_heads, "K": model.num_kv_heads, "D": model.head_dim}
    sizes = {
        "attention_block": {**wide, **heads, "page": page_size},
        "mlp_block": {**wide, "I": model.intermediate_size},
    }
    if model.has_sinks:
        options["sink"] = "yes"
    return {name: Case(dtype="fp32", sizes=n, options=options) for name, n in sizes.items()}


def _blocks(config: EngineConfig, model: ModelConfig, device: EngineDevice) -> list[Decision]:
    cases = block_cases(
        model, num_rows=config.max_num_seqs, page_size=config.page_size, is_packed=True
    )
    if model.moe is not None:
        del cases["mlp_block"]
    return [choose(op_spec(name), case, device.traits, where=WHERE) for name, case in cases.items()]


def _decision(
    config: EngineConfig,
    chosen: str,
    tier: Tier,
    *,
    reasons: tuple[str, ...] = (),
    rejected: tuple[Rejection, ...] = (),
    evidence: str = "run on CPU; answers compared with transformers",
) -> Decision:
    return Decision(
        kind="layout",
        where=WHERE,
        what="weights",
        asked=config.weights,
        chosen=chosen,
        tier=tier,
        source="default" if config.weights == "auto" else "explicit",
        reasons=reasons,
        rejected=rejected,
        evidence=evidence,
        remedy="",
    )
