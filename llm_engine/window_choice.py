"""Whether layers with windows get own pages, masks, or full attention in a bounded context."""

from kernels.ledger import Decision, Rejection
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.model_config import ModelConfig
from llm_engine.windows import Windows

WHERE = "llm engine, layers with windows"
OWN_PAGES, MASKED = "pages of their own", "the pages of all layers"
_ALIKE = "within it full attention is the same, and all layers keep the same pages"


def served_model(
    config: EngineConfig, model: ModelConfig, *, is_packed: bool = False
) -> tuple[ModelConfig, Decision | None]:
    """The model as its layers will attend, and the decision; None for one without windows.

    Over ranks, `over_ranks` has said what they can have.
    Raises: InvalidConfig where the settings ask for attention without sinks, or beyond windows in
        a form that has none.
    """
    if config.layout:
        return model, None if model.windows is None else _masked(model.windows)
    if config.batch_invariant:
        return _without(config, model, "batch_invariant", "leave batch_invariant out")
    if is_packed:
        form = "native attention over packed weights"
        return _without(config, model, form, "ask for weights=unpacked")
    if model.windows is None:
        return model, None
    tokens, wanted = model.windows.tokens, config.max_model_len
    if wanted is not None and wanted <= tokens:
        reason = f"no sequence is longer than max_model_len, {wanted}"
        return model.within_window(), _bounded(tokens, reason)
    return model, _own_pages(model.windows, model.num_layers)


def over_ranks(config: EngineConfig, model: ModelConfig, *, has_masks: bool) -> ModelConfig:
    """The model as a layout's ranks will attend.

    `has_masks` says that each rank attends with the keys of its heads alone, unpacked.
    Raises: as `served_model`.
    """
    if has_masks:
        return model
    form = f"layout {config.layout}"
    model, _ = _without(config, model, form, "take a layout of tp, pp, dp and ep alone, or none")
    return model


def _without(
    config: EngineConfig, model: ModelConfig, form: str, way_out: str
) -> tuple[ModelConfig, Decision | None]:
    """The model in a form without windows and sinks."""
    if model.has_sinks:
        raise InvalidConfig(
            f"the heads of {model.architecture} have sinks, but {form} has none: {way_out}"
        )
    if model.windows is None:
        return model, None
    tokens, wanted = model.windows.tokens, config.max_model_len
    if wanted is not None and wanted > tokens:
        raise InvalidConfig(
            f"max_model_len is {wanted}, but {form} has no windows, and full attention is the "
            f"model's up to {tokens} tokens alone: ask for no more, or {way_out}"
        )
    reason = f"{form} has no windows: the context ends with the window"
    return model.within_window(), _bounded(tokens, reason)


def _own_pages(windows: Windows, num_layers: int) -> Decision:
    num_full = num_layers - len(windows.layers)
    reasons = (
        f"{len(windows.layers)} of {num_layers} layers see the last {windows.tokens} tokens; pages "
        "before those are let go of",
        f"the other {num_full} keep every page" if num_full else "no layer keeps every page",
    )
    return _decision(OWN_PAGES, reasons, _full(windows.tokens))


def _masked(windows: Windows) -> Decision:
    reasons = (
        f"ranks keep one kind of page: keys before the last {windows.tokens} tokens are skipped, "
        "and stay",
    )
    return _decision(MASKED, reasons, OWN_PAGES)


def _bounded(tokens: int, reason: str) -> Decision:
    return _decision(_full(tokens), (reason, _ALIKE), OWN_PAGES)


def _full(tokens: int) -> str:
    return f"full attention, up to {tokens} tokens"


def _decision(chosen: str, reasons: tuple[str, ...], other: str) -> Decision:
    return Decision(
        kind="cache",
        where=WHERE,
        what="windows",
        asked="auto",
        chosen=chosen,
        tier=Tier.VENDOR,
        source="default",
        reasons=reasons,
        rejected=(Rejection(candidate=other, reasons=reasons[:1]),),
        evidence="run on CPU; answers compared with transformers",
    )
