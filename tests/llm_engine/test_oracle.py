"""Greedy answers equal those of transformers on the same dequantised weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from llm_engine.chat.chat_format import ChatFormat
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.loader import LoadedModel
from llm_engine.types import ChatMessage, GenerationRequest, SamplingParams
from llm_engine.weights.resolve import BUNDLED_NAME

NUM_TOKENS = 12
QUESTIONS = [
    "What is the capital of France?",
    "Hi",
    "Write a haiku about the sea.",
    "12 * 11 =",
    "Explain photosynthesis to a child in two sentences.",
    "List three prime numbers.",
    "Übersetze 'good morning' ins Deutsche.",
    "写一句关于春天的话。",
    "def fibonacci(n):",
    "Why is the sky blue? " * 12,
    "Name a colour 🙂",
    "Once upon a time, in a village by the river, there lived",
    "Summarise: " + "The cat sat on the mat and looked at the moon. " * 20,
    "Is water wet?",
    "Give me a recipe for pancakes.",
    "x",
    "Translate to Spanish: I like green apples.",
    "Who wrote Hamlet?",
    "Count from one to ten.",
    "What does HTTP stand for?",
    "Tell me a joke about computers.",
    "The opposite of hot is",
    "Sort these: 9, 3, 7, 1",
    "What is 2 + 2?",
    "Describe a sunset over the desert.",
    "Fix the grammar: he go to school yesterday",
    "SELECT name FROM users WHERE",
    "How many legs has a spider?",
    "Give a synonym of happy.",
    "What is the largest planet?",
    "a b c d e f g",
    "Who are you?",
]


@pytest.fixture(scope="module")
def prompts(smollm2: LoadedModel) -> dict[str, tuple[int, ...]]:
    tokenizer = smollm2.tokenizer
    chat = ChatFormat(tokenizer.chat_template or "", tokenizer.special_tokens)
    texts = [chat.render([ChatMessage("user", question)]) for question in QUESTIONS]
    return {f"q{i}": tuple(tokenizer.encode_text(text)) for i, text in enumerate(texts)}


@pytest.fixture(scope="module")
def alone(
    smollm2: LoadedModel, prompts: dict[str, tuple[int, ...]], tokens_of: Callable[..., Any]
) -> dict[str, list[int]]:
    """Our answers, one request at a time."""
    engine = _engine(smollm2)
    answers: dict[str, list[int]] = {}
    for name, prompt in prompts.items():
        answers |= tokens_of(engine.generate([_request(name, prompt)]))
    engine.check_integrity()
    return answers


def _engine(loaded: LoadedModel, **settings: Any) -> LLMEngine:
    settings = {"kv_cache_bytes": 200 << 20, **settings}
    return LLMEngine(loaded, EngineConfig(model=BUNDLED_NAME, dtype="float32", **settings))


def _request(name: str, prompt: tuple[int, ...]) -> GenerationRequest:
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    return GenerationRequest(name, None, prompt, params)


@pytest.mark.slow
def test_alone_equals_transformers(
    alone: dict[str, list[int]], prompts: dict[str, tuple[int, ...]], smollm2_oracle: Any
) -> None:
    """Each of our tokens is the oracle's argmax given those before, so the answers are equal."""
    assert len(alone) == 32
    for name, answer in alone.items():
        ids = torch.tensor([[*prompts[name], *answer]])
        with torch.inference_mode():
            logits = smollm2_oracle(ids, logits_to_keep=len(answer) + 1).logits[0, :-1]
        assert logits.argmax(-1).tolist() == answer, name


@pytest.mark.slow
def test_generate_of_transformers_agrees(
    alone: dict[str, list[int]], prompts: dict[str, tuple[int, ...]], smollm2_oracle: Any
) -> None:
    for name in ("q0", "q4"):
        ids = torch.tensor([prompts[name]])
        out = smollm2_oracle.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=2,
            pad_token_id=2,
        )
        assert out[0, ids.shape[1] :].tolist() == alone[name]


@pytest.mark.slow
def test_staggered_batches_with_small_chunks_change_nothing(
    smollm2: LoadedModel,
    alone: dict[str, list[int]],
    prompts: dict[str, tuple[int, ...]],
    tokens_of: Callable[..., Any],
) -> None:
    engine = _engine(smollm2, max_num_seqs=12, prefill_chunk_tokens=48)
    events = []
    waiting = list(prompts.items())
    while waiting or engine.has_work:
        for name, prompt in waiting[:3]:
            engine.add(_request(name, prompt))
        waiting = waiting[3:]
        events += engine.step()
    assert tokens_of(events) == alone
    engine.check_integrity()


@pytest.mark.slow
def test_preemption_changes_nothing(
    smollm2: LoadedModel,
    alone: dict[str, list[int]],
    prompts: dict[str, tuple[int, ...]],
    tokens_of: Callable[..., Any],
) -> None:
    bytes_per_token = 30 * 2 * 3 * 64 * 4
    chosen = dict(list(prompts.items())[13:19])
    engine = _engine(smollm2, kv_cache_bytes=bytes_per_token * 128, page_size=4)
    events = engine.generate([_request(name, prompt) for name, prompt in chosen.items()])
    assert tokens_of(events) == {name: alone[name] for name in chosen}
    assert engine.stats().preemptions_total > 0
    engine.check_integrity()
