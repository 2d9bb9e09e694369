"""How many prompt tokens one step computes: enough to hide the weights' reading, no more.

A step reads every weight once, however many tokens it computes. Up to some chunk that reading is
what a prompt waits for; beyond it a larger chunk gains little, takes more workspace, and makes
running answers wait longer between two tokens.
"""

from dataclasses import dataclass

from llm_engine.memory.workspace import step_bytes
from llm_engine.model_config import ModelConfig

LEAST_TOKENS = 64
READING_SHARE = 0.03  # of the time of the products, at the chosen chunk
WORKSPACE_SHARE = 1 / 16  # of the memory that is available
_MULTIPLE = 64
_TIMES_A_WEIGHT = 2  # operations for each token: multiply, add


@dataclass(frozen=True, slots=True)
class _Form:
    """Weights in one format. `operations_per_byte` is what two cores do while they read a byte."""

    operations_per_byte: float
    bytes_per_weight: float


# Peaks over the read rate of the row "cpu-2core-avx512_bf16" in the table of products. Processors
# without these units do less while they read, so for them the chunk is on the safe side.
_FORMS = {
    "packed": _Form(37.0, 0.625),
    "bf16": _Form(18.4, 2.0),
    "fp32": _Form(7.3, 4.0),
}


@dataclass(frozen=True, slots=True)
class ChunkChoice:
    """The chunk, why it was chosen, and what was passed over: (chunk, reason)."""

    tokens: int
    reasons: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...] = ()


def choose_chunk(
    model: ModelConfig,
    *,
    asked: int | None,
    form: str,
    item_bytes: int,
    available_bytes: int,
    operations_per_byte: float | None = None,
) -> ChunkChoice:
    """The chunk asked for, else the smallest that hides the weights' reading, as memory allows.

    `form` is what is multiplied: packed, bf16 or fp32; `item_bytes` those of an activation.
    `operations_per_byte` is what a device does while it reads a byte, None for a CPU's own rates.
    """
    if asked is not None:
        return ChunkChoice(asked, ("asked for; the step's workspace is sized for it",))
    wanted = hiding_tokens(form, operations_per_byte)
    budget = int(available_bytes * WORKSPACE_SHARE)
    tokens = wanted
    while tokens > LEAST_TOKENS and step_bytes(model, tokens, item_bytes) > budget:
        tokens = _whole(tokens / 2)
    if tokens < wanted:
        needed = step_bytes(model, wanted, item_bytes)
        reason = f"takes {needed} bytes of workspace, a step may take {budget}"
        return ChunkChoice(tokens, ("as large as memory allows",), ((f"{wanted} tokens", reason),))
    return ChunkChoice(
        tokens,
        (f"reading the {form} weights is {READING_SHARE:.0%} of a step of this size",),
        (("more tokens", "answers would wait longer for a step that is hardly more efficient"),),
    )


def hiding_tokens(form: str, operations_per_byte: float | None = None) -> int:
    """The smallest chunk at which reading takes no more than its share of a step."""
    found = _FORMS[form]
    rate = operations_per_byte or found.operations_per_byte
    return _whole(rate * found.bytes_per_weight / _TIMES_A_WEIGHT / READING_SHARE)


def _whole(tokens: float) -> int:
    """Up to a multiple of the rows that the kernels work on together."""
    return max(LEAST_TOKENS, -(-int(tokens) // _MULTIPLE) * _MULTIPLE)
