"""Answers with the logits that each of their tokens came from, to compare bit by bit."""

from typing import Any

import torch

from llm_engine.engine import LLMEngine
from llm_engine.types import GenerationRequest, PromptScored


def served(engine: LLMEngine, *requests: GenerationRequest) -> tuple[Any, Any]:
    """Tokens and the logits that each came from, of the first request."""
    run, seen = engine._runner.run, {}

    def watched(chunks: Any) -> Any:
        logits = run(chunks)
        end = 0
        for chunk in chunks:
            first, end = end, end + chunk.num_logits
            if chunk.seq.request_id == requests[0].request_id:
                for i in range(first, end):
                    position = chunk.end - (end - i) + 1
                    seen.setdefault(position, []).append(logits[i].clone())
        return logits

    engine._runner.run = watched
    events = engine.generate(requests)
    engine.check_integrity()
    tokens = [
        token for n, e in events if n == requests[0].request_id and hasattr(e, "token_ids")
        and not isinstance(e, PromptScored) for token in e.token_ids
    ]  # fmt: skip
    return tokens, seen


def has_same_bits(one: tuple[Any, Any], other: tuple[Any, Any], num_prompt: int) -> bool:
    """Tokens and logits; of a position the last row counts: a refused draft's comes before."""
    positions = range(num_prompt, num_prompt + len(one[0]))
    return one[0] == other[0] and all(
        torch.equal(one[1][position][-1], other[1][position][-1]) for position in positions
    )


def assert_same_bits(one: tuple[Any, Any], other: tuple[Any, Any], num_prompt: int) -> None:
    """See `has_same_bits`."""
    assert one[0]
    assert has_same_bits(one, other, num_prompt)
