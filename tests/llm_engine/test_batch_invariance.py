"""The batch-invariant mode: a request's logits are the same bits alone and in any company."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.ops.swiglu.cpu import swiglu
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.layers.invariance import keeps_rows_apart
from llm_engine.layers.tiles import by_one_thread
from llm_engine.loader import load_model
from llm_engine.types import GenerationRequest
from llm_engine.weights.resolve import BUNDLED_NAME
from tests.llm_engine.watched_logits import assert_same_bits, has_same_bits, served

Build = Callable[..., LLMEngine]
Make = Callable[..., GenerationRequest]
PROMPT = b"a prompt of some length, so that it takes several chunks and tiles, and again: a prompt"


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
    alone = served(tiny_engine(batch_invariant=True, speculation="off"), wanted)
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
    assert_same_bits(alone, served(engine, wanted, *others), len(PROMPT))


def test_the_plain_forms_would_fail_this_test(tiny_engine: Build, make_request: Make) -> None:
    """What the mode is for: without it, company and chunks change bits here."""
    wanted = make_request("a", PROMPT, seed=5, max_tokens=24, ignore_eos=True)
    others = [make_request(f"o{i}", PROMPT[i:], seed=i, max_tokens=20) for i in range(7)]
    _, alone = served(tiny_engine(speculation="off"), wanted)
    _, crowd = served(tiny_engine(speculation="off", prefill_chunk_tokens=3), wanted, *others)
    assert not all(torch.equal(alone[p][-1], crowd[p][-1]) for p in alone)


def test_the_mode_answers_as_the_plain_forms_do(tiny_engine: Build, make_request: Make) -> None:
    request = make_request("a", PROMPT, temperature=0.0, max_tokens=30, ignore_eos=True)
    plain, plain_logits = served(tiny_engine(speculation="off"), request)
    tiled, tiled_logits = served(tiny_engine(speculation="off", batch_invariant=True), request)
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


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("width", [24, 4099])
def test_the_activation_by_one_thread_keeps_rows_apart(width: int, num_threads: int) -> None:
    """Of 4099 values a row, two threads meet within a row: the plain form fails there."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    x = torch.randn(40, 2 * width, generator=torch.Generator().manual_seed(1))
    activate = by_one_thread(swiglu)
    whole, _ = activate(x)
    parts = {(i, j): activate(x[i:j])[0] for i in range(0, 40, 7) for j in (i + 1, i + 5, 40)}
    torch.set_num_threads(before)
    assert all(torch.equal(part, whole[i:j]) for (i, j), part in parts.items())
    torch.testing.assert_close(whole, swiglu(x)[0])


MOE = {
    "family": "Qwen3Moe",
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "decoder_sparse_step": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_are_computed_alike_alone_and_in_batches(
    make_tiny: Callable[..., Any],
    save_byte_tokenizer: Callable[[Path], None],
    make_request: Make,
    tmp_path: Path,
    dtype: str,
) -> None:
    """How many rows an expert has follows the batch; what it makes of each does not."""
    make_tiny(**MOE).save_pretrained(tmp_path)
    save_byte_tokenizer(tmp_path)
    settings = {"model": str(tmp_path), "dtype": dtype, "page_size": 4, "speculation": "off"}
    loaded = load_model(EngineConfig(**settings, batch_invariant=True))
    wanted = make_request("a", PROMPT, seed=5, max_tokens=16, ignore_eos=True)
    others = [make_request(f"o{i}", PROMPT[i:], seed=i, max_tokens=12) for i in range(9)]

    def differs(*, batch_invariant: bool) -> bool:
        config = EngineConfig(**settings, batch_invariant=batch_invariant)
        alone = served(LLMEngine(loaded, config), wanted)
        crowd = served(LLMEngine(loaded, replace(config, prefill_chunk_tokens=7)), wanted, *others)
        return not has_same_bits(alone, crowd, len(PROMPT))

    assert not differs(batch_invariant=True)
    assert differs(batch_invariant=False)  # what the mode is for


def test_packed_weights_keep_rows_apart(make_request: Make) -> None:
    """The native kernels on SmolLM2, without any tiles."""
    settings = {"model": BUNDLED_NAME, "weights": "packed", "batch_invariant": True}
    loaded = load_model(EngineConfig(**settings))
    wanted = make_request("a", range(500, 560), seed=5, max_tokens=5, ignore_eos=True)
    others = [make_request(f"o{i}", range(40, 45 + 7 * i), seed=i, max_tokens=6) for i in range(4)]
    answers = [
        served(LLMEngine(loaded, EngineConfig(**settings, **more)), wanted, *company)
        for company, more in (
            ([], {"speculation": "off"}),
            (others, {"speculation": "ngram", "prefill_chunk_tokens": 24}),
        )
    ]
    assert_same_bits(*answers, 60)
