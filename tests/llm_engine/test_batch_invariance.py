"""The batch-invariant mode: a request's logits are the same bits alone and in any company."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidConfig
from llm_engine.layers.invariance import keeps_rows_apart
from llm_engine.loader import load_model
from llm_engine.types import GenerationRequest, PromptScored
from llm_engine.weights.resolve import BUNDLED_NAME

Build = Callable[..., LLMEngine]
Make = Callable[..., GenerationRequest]
PROMPT = b"a prompt of some length, so that it takes several chunks and tiles, and again: a prompt"


def _served(engine: LLMEngine, *requests: GenerationRequest) -> tuple[Any, Any]:
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


def _assert_same(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    """The last row of a position is the one its token came from: a refused draft's comes before."""
    assert one[0] == other[0]
    for position in range(len(PROMPT), len(PROMPT) + len(one[0])):
        assert torch.equal(one[1][position][-1], other[1][position][-1])


@settings(
    deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(1, 15),
    st.sampled_from([1, 3, 16, 64, 512]),
    st.sampled_from(["off", "ngram"]),
    st.booleans(),
    st.integers(0, 2**20),
)
def test_logits_are_bit_equal_alone_and_in_batches(
    tiny_engine: Build,
    make_request: Make,
    num_others: int,
    chunk_tokens: int,
    speculation: str,
    is_seen_before: bool,
    seed: int,
) -> None:
    wanted = make_request("a", PROMPT, seed=5, max_tokens=24, ignore_eos=True)
    alone = _served(tiny_engine(batch_invariant=True, speculation="off"), wanted)
    engine = tiny_engine(
        batch_invariant=True, speculation=speculation, prefill_chunk_tokens=chunk_tokens
    )
    if is_seen_before:
        engine.generate([make_request("before", PROMPT[:70], max_tokens=1, seed=1)])
    chance = random.Random(seed)
    others = [
        make_request(f"o{i}", chance.randbytes(chance.randint(1, 60)), seed=i, max_tokens=20)
        for i in range(num_others)
    ]
    _assert_same(alone, _served(engine, wanted, *others))


def test_the_plain_forms_would_fail_this_test(tiny_engine: Build, make_request: Make) -> None:
    """What the mode is for: without it, company and chunks change bits here."""
    wanted = make_request("a", PROMPT, seed=5, max_tokens=24, ignore_eos=True)
    others = [make_request(f"o{i}", PROMPT[i:], seed=i, max_tokens=20) for i in range(7)]
    _, alone = _served(tiny_engine(speculation="off"), wanted)
    _, crowd = _served(tiny_engine(speculation="off", prefill_chunk_tokens=3), wanted, *others)
    assert not all(torch.equal(alone[p][-1], crowd[p][-1]) for p in alone)


def test_the_mode_answers_as_the_plain_forms_do(tiny_engine: Build, make_request: Make) -> None:
    request = make_request("a", PROMPT, temperature=0.0, max_tokens=30, ignore_eos=True)
    plain, plain_logits = _served(tiny_engine(speculation="off"), request)
    tiled, tiled_logits = _served(tiny_engine(speculation="off", batch_invariant=True), request)
    assert tiled == plain
    for position, (logits,) in plain_logits.items():
        torch.testing.assert_close(tiled_logits[position][0], logits, atol=1e-4, rtol=1e-4)


def test_the_mode_is_in_the_ledger(tiny_engine: Build) -> None:
    engine = tiny_engine(batch_invariant=True)
    (decision,) = [d for d in engine.ledger if d.what == "batch_invariant"]
    assert decision.chosen == "tiles"


def test_products_in_tiles_keep_rows_apart() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((96, 48), (257, 48), (1152, 576)):
            assert keeps_rows_apart(*shape, dtype)


def test_adapters_have_no_such_form(tiny_loaded: Any) -> None:
    config = EngineConfig(
        model="tiny", dtype="float32", batch_invariant=True, adapters={"x": "folder"}
    )
    with pytest.raises(InvalidConfig, match="no form for adapters"):
        LLMEngine(tiny_loaded, config)


def test_packed_weights_keep_rows_apart(make_request: Make) -> None:
    """The native kernels on SmolLM2, without any tiles."""
    settings = {"model": BUNDLED_NAME, "weights": "packed", "batch_invariant": True}
    loaded = load_model(EngineConfig(**settings))
    wanted = make_request("a", range(500, 560), seed=5, max_tokens=5, ignore_eos=True)
    others = [make_request(f"o{i}", range(40, 45 + 7 * i), seed=i, max_tokens=6) for i in range(4)]
    served = [
        _served(LLMEngine(loaded, EngineConfig(**settings, **more)), wanted, *company)
        for company, more in (
            ([], {"speculation": "off"}),
            (others, {"speculation": "ngram", "prefill_chunk_tokens": 24}),
        )
    ]
    assert served[0][0] == served[1][0]
    for position in range(60, 65):
        assert torch.equal(served[0][1][position][-1], served[1][1][position][-1])
