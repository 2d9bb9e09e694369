"""How a model's conversations are written and read, as a line of the ledger."""

from kernels.ledger import Decision
from kernels.spec import Tier
from llm_engine.chat.families import Family


def chat_decision(family: Family | None) -> Decision:
    """The form of tool calls and of reasoning; None for a model without a chat template."""
    if family is None:
        chosen, reasons = "none", ("the model has no chat template: prompts only",)
    else:
        chosen = family.name
        origin = _origin(family)
        reasons = (origin, f"reasoning: {_reasoning(family)}")
    return Decision(
        kind="chat",
        where="llm engine, prompts and answers",
        what="form of tool calls",
        asked="auto",
        chosen=chosen,
        tier=Tier.VENDOR,
        source="default",
        reasons=reasons,
        evidence="told by the markers in the chat template",
    )


def _origin(family: Family) -> str:
    if family.knows_tools:
        return "its template has a place for tools"
    if family.channels is not None:
        return "its template has no place for tools, and answers on channels: tools are refused"
    return (
        "its template has no place for tools: they are described in the system text, and the "
        "model was not taught this form"
    )


def _reasoning(family: Family) -> str:
    if family.channels is not None:
        return f"the {family.channels.thoughts} channel"
    markers = family.reasoning
    return "none" if markers is None else f"{markers.begin} to {markers.end}"
