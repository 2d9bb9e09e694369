"""Drafts in the engine itself: over pages, preemption, prefix hits and chunks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from llm_engine.engine import LLMEngine
from llm_engine.types import Finished, GenerationRequest

Build = Callable[..., LLMEngine]
Make = Callable[..., GenerationRequest]

_CROWDED = {"max_num_seqs": 5, "prefill_chunk_tokens": 7, "kv_cache_bytes": 768 * 120}


def _requests(make_request: Make, **params: Any) -> list[GenerationRequest]:
    params = {"max_tokens": 40, "ignore_eos": True, **params}
    prompts = [(b"abcab" * 8)[i : 3 * i + 9] for i in range(8)]
    return [make_request(f"r{i}", prompt, seed=i, **params) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("settings", [{}, _CROWDED, {"prefix_cache": False}])
def test_greedy_tokens_are_the_oracles(
    tiny_engine: Build,
    tiny_oracle: Any,
    make_request: Make,
    tokens_of: Callable[..., Any],
    settings: dict[str, Any],
) -> None:
    engine = tiny_engine(speculation="ngram", **settings)
    requests = _requests(make_request, temperature=0.0)
    events = engine.generate(requests)
    engine.check_integrity()
    assert engine.stats().accepted_drafts_total > 0
    assert engine.stats().rejected_drafts_total > 0
    assert (engine.stats().preemptions_total > 0) is (settings is _CROWDED)
    answers = tokens_of(events)
    for request in requests:
        prompt, answer = request.prompt_token_ids or (), answers[request.request_id]
        with torch.inference_mode():
            logits = tiny_oracle(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == answer


@pytest.mark.parametrize("settings", [{}, _CROWDED])
def test_drawn_tokens_are_those_without_drafts(
    tiny_engine: Build,
    make_request: Make,
    tokens_of: Callable[..., Any],
    settings: dict[str, Any],
) -> None:
    requests = _requests(make_request, temperature=0.3, n=2, repetition_penalty=1.05)
    plain = tiny_engine(batch_invariant=True).generate(requests)
    engine = tiny_engine(batch_invariant=True, speculation="ngram", **settings)
    drafted = engine.generate(requests)
    assert engine.stats().accepted_drafts_total > 0
    for index in (0, 1):
        assert tokens_of(drafted, index) == tokens_of(plain, index)
    counts = [
        (event.accepted_draft_tokens, event.rejected_draft_tokens)
        for _, event in drafted
        if isinstance(event, Finished)
    ]
    totals = engine.stats().accepted_drafts_total, engine.stats().rejected_drafts_total
    assert tuple(map(sum, zip(*counts, strict=True))) == totals


def test_the_prompt_is_scored_in_the_engine(
    tiny_engine: Build, tiny_oracle: Any, make_request: Make
) -> None:
    prompt = b"a prompt longer than a chunk"
    engine = tiny_engine()
    engine.generate([make_request("before", prompt, max_tokens=1)])
    request = make_request("a", prompt, prompt_logprobs=0, max_tokens=2, n=2, seed=1)
    scored = engine.generate([request])[0][1]
    with torch.inference_mode():
        expected = tiny_oracle(torch.tensor([list(prompt)])).logits[0].log_softmax(-1)
    assert [e.logprob for e in scored.logprobs[1:]] == pytest.approx(
        [float(expected[i, token]) for i, token in enumerate(prompt[1:])], abs=1e-4
    )
