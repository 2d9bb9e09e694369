"""Batch-invariant adapters: a request's logits are the same bits in any mixed company."""

from collections.abc import Callable
from typing import Any

import pytest

from llm_engine.types import GenerationRequest, SamplingParams
from tests.llm_engine.watched_logits import assert_same_bits, served

PROMPT = tuple(range(40, 78))


def _request(name: str, prompt: tuple[int, ...], adapter: str | None, **params: Any) -> Any:
    params = {"temperature": 0.8, "max_tokens": 10, "ignore_eos": True, **params}
    return GenerationRequest(
        request_id=name,
        messages=None,
        prompt_token_ids=prompt,
        params=SamplingParams(**params),
        adapter=adapter,
    )


def _company(adapters: list[str | None]) -> list[GenerationRequest]:
    """Requests of other lengths, each adapter among rows of others and of none."""
    return [
        _request(f"o{i}", PROMPT[i : 2 * i + 3], adapters[i % len(adapters)], seed=i)
        for i in range(11)
    ]


@pytest.mark.parametrize("adapter", [None, "all", "queries", "patterns"])
@pytest.mark.parametrize(
    "company", [["all"], [None], [None, "all", "queries", "patterns"]], ids=str
)
def test_logits_are_bit_equal_alone_and_in_mixed_batches(
    kit: Any, adapter: str | None, company: list[str | None]
) -> None:
    wanted = _request("a", PROMPT, adapter, seed=5)
    alone = served(kit.engine(batch_invariant=True, speculation="off"), wanted)
    engine = kit.engine(batch_invariant=True, speculation="ngram", prefill_chunk_tokens=5)
    assert_same_bits(alone, served(engine, wanted, *_company(company)), len(PROMPT))


def test_the_mode_still_answers_as_merged_weights_do(
    kit: Any, tokens_of: Callable[..., dict[str, list[int]]]
) -> None:
    engine = kit.engine(batch_invariant=True)
    for adapter in (None, "all", "patterns"):
        request = _request("a", PROMPT, adapter, temperature=0.0, max_tokens=12)
        assert tokens_of(engine.generate([request]))["a"] == kit.expected(adapter, list(PROMPT))
    (decision,) = [d for d in engine.ledger if d.what == "batch_invariant"]
    assert "the updates of adapters are products in tiles too" in decision.reasons
