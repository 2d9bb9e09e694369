"""How a model's conversations are written and read, as a line of the ledger."""

from kernels.ledger import Decision
from kernels.spec import Tier
from llm_engine.chat.families import Family


def chat_decision(family: Family | None) -> Decision:
    """The form of tool calls and of reasoning; None for a model without a chat template."""
    if family is None:
        chosen, reasons = "none", ("the model has no chat template: prompts only",)
    else:
        chosen = family.calls.name
        markers = family.reasoning
        reasoning = "none" if markers is None else f"{markers.begin} to {markers.end}"
        origin = (
            "its template has a place for tools"
            if family.knows_tools
            else "its template has no place for tools: they are described in the system text, "
            "and the model was not taught this form"
        )
        reasons = (origin, f"reasoning: {reasoning}")
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
