"""Whether and how an engine drafts, as a line of its ledger."""

from collections.abc import Callable

from kernels.ledger import Decision, Ledger, Rejection
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.speculation.ngram import NgramDrafter
from llm_engine.speculation.speculator import Speculator

_HOW = {
    "auto": (
        "n-gram look-up in prompt and answer; as many drafts as pay by the measured time of a row "
        "and the acceptance of each sequence, none where they do not",
    ),
    "ngram": ("asked for: every n-gram match is computed in full, whatever it costs",),
    "off": ("asked for: one token for each sequence and step",),
}
_NO_WAY_BACK = "the model keeps a state that no refused draft can be taken out of"


def decide_speculation(config: EngineConfig, *, can_take_back: bool, ledger: Ledger) -> Decision:
    """Choose by the setting; `can_take_back` says whether the cache can undo refused drafts.

    Drafts never change an answer but for the rounding of logits where kernels compute several
    rows in another order than one; `batch_invariant` rules that out too.
    Raises: InvalidConfig where drafts were asked for and cannot be undone.
    """
    is_off = config.speculation == "off" or not can_take_back
    reasons = _HOW[config.speculation]
    if not can_take_back and config.speculation != "off":
        if config.speculation == "ngram":
            raise InvalidConfig(f"speculation is 'ngram', but {_NO_WAY_BACK}: ask for 'auto'")
        reasons = (_NO_WAY_BACK,)
    rejected = (Rejection(candidate="mtp", reasons=("no model here has such heads",)),)
    return ledger.record(
        Decision(
            kind="speculation",
            where="llm engine, decode",
            what="speculation",
            asked=config.speculation,
            chosen="off" if is_off else "ngram",
            tier=Tier.FUSED,
            source="default" if config.speculation == "auto" else "explicit",
            case=f"max_draft_tokens={config.max_draft_tokens}",
            reasons=reasons,
            rejected=rejected,
            evidence="run on CPU; tokens compared with those without drafts",
        )
    )


def make_speculator(
    config: EngineConfig, decision: Decision, clock: Callable[[], float]
) -> Speculator | None:
    """What the decision asks for; None where nothing is drafted."""
    if decision.chosen == "off":
        return None
    return Speculator(
        NgramDrafter,
        max_draft_tokens=config.max_draft_tokens,
        clock=clock,
        is_adaptive=config.speculation == "auto",
    )
