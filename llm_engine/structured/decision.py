"""Which library binds answers to a form, as a line of the ledger."""

from kernels.ledger import Decision, Rejection
from kernels.spec import Tier


def grammar_decision(timeout_s: float) -> Decision:
    """The choice among grammar libraries, and the bound on compilation in seconds."""
    return Decision(
        kind="grammar",
        where="llm engine, sampling",
        what="grammar library",
        asked="auto",
        chosen="llguidance",
        tier=Tier.VENDOR,
        source="default",
        case=f"grammar_timeout_s={timeout_s:g}",
        reasons=(
            "masks in tens of microseconds over 49k tokens, most schemas compile within 2 ms",
            "every phase is bounded by counted work, and any number of tokens can be taken back",
            "no dependencies; MIT",
        ),
        rejected=(
            Rejection(
                candidate="xgrammar",
                reasons=("depends on torch, transformers, triton and apache-tvm-ffi",),
            ),
        ),
        evidence="run on CPU",
    )
