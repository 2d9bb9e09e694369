"""Greedy answers equal transformers', whatever the engine does to be fast.

An answer is checked token by token: each must be the oracle's argmax given those before it, which
makes the answers equal and costs one forward pass of the oracle.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.loader import LoadedModel, load_model
from llm_engine.types import ChatMessage, Finished, GenerationRequest, SamplingParams
from llm_engine.weights.resolve import BUNDLED_NAME

Prompts = Mapping[str, tuple[int, ...]]
TOPICS = ("rivers", "clocks", "bread", "comets", "bridges", "violins", "maps", "tides")
SENTENCE = "Here is fact {i} about {topic}: they were counted {n} times last year. "
LENGTHS = (4096, 2048, 1024, 1024, 512, 512, *([256] * 4), *([96] * 14), *([24] * 40))
NUM_TOKENS = 8
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 24},
    "Qwen3Moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    # Windows several times shorter than the prompts; in the first, every second layer has one.
    "GptOss": {
        "intermediate_size": 32,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 10,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 8.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    "Qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
}
WINDOWED = {"Mistral": {"sliding_window": 13}}
WHOLE = 4096


def _requests(prompts: Prompts, num_tokens: int, suffix: str = "") -> list[GenerationRequest]:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return [
        GenerationRequest(name + suffix, None, prompt, params) for name, prompt in prompts.items()
    ]


def _check(oracle: Any, prompts: Prompts, answers: Mapping[str, list[int]]) -> None:
    assert answers.keys() == prompts.keys()
    for name, answer in answers.items():
        ids = torch.tensor([[*prompts[name], *answer]])
        with torch.inference_mode():
            logits = oracle(ids, logits_to_keep=len(answer) + 1).logits[0, :-1]
        assert logits.argmax(-1).tolist() == answer, name


def _staggered(engine: LLMEngine, requests: list[GenerationRequest]) -> list[Any]:
    """Serve the requests, two new ones a step."""
    events: list[Any] = []
    waiting = list(requests)
    while waiting or engine.has_work:
        for request in waiting[:2]:
            engine.add(request)
        waiting = waiting[2:]
        events += engine.step()
    return events


@pytest.fixture(scope="module")
def texts(smollm2: LoadedModel) -> Prompts:
    """64 prompts of up to 4096 tokens; neighbours share their beginnings in part."""
    prompts: dict[str, tuple[int, ...]] = {}
    for number, length in enumerate(LENGTHS):
        topic = TOPICS[number // 2 % len(TOPICS)]
        first = 0 if number % 2 else number
        text = "".join(
            SENTENCE.format(i=first + i, topic=topic, n=7 * i + 3) for i in range(length // 8)
        )
        prompts[f"p{number}"] = tuple(smollm2.tokenizer.encode_text(text)[:length])
    return prompts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_64_prompts_up_to_4k_equal_transformers(
    smollm2: LoadedModel, smollm2_oracle: Any, texts: Prompts, tokens_of: Any
) -> None:
    """Full precision, mixed batches, chunks, prefix hits and drafts at once."""
    assert len(texts) == 64
    assert max(map(len, texts.values())) == 4096
    config = EngineConfig(
        model=BUNDLED_NAME,
        dtype="float32",
        prefill_chunk_tokens=128,
        speculation="ngram",
        kv_cache_bytes=1 << 30,
    )
    engine = LLMEngine(smollm2, config)
    _check(smollm2_oracle, texts, tokens_of(_staggered(engine, _requests(texts, NUM_TOKENS))))
    stats = engine.stats()
    assert stats.prefix_hits_total > 0
    assert stats.accepted_drafts_total > 0
    engine.check_integrity()


@pytest.fixture(scope="module")
def tiny(request: pytest.FixtureRequest, make_tiny: Any, save_byte_tokenizer: Any) -> Any:
    """A tiny random model of a family, as transformers and as the engine loads it."""
    family: str = request.param
    folder = request.getfixturevalue("tmp_path_factory").mktemp(family)
    oracle = make_tiny(family, **(FAMILIES | WINDOWED)[family])
    oracle.save_pretrained(folder)
    save_byte_tokenizer(Path(folder))
    return oracle, load_model(EngineConfig(model=str(folder), dtype="float32"))


def _serve_twice(tiny: tuple[Any, LoadedModel], tokens_of: Any, **settings: Any) -> LLMEngine:
    """Check the answers of prompts that share beginnings, the second time with what was kept."""
    oracle, loaded = tiny
    shared = [(11 * i) % 251 for i in range(70)]
    prompts: Prompts = {
        "whole": tuple(shared),
        "partial": (*shared[:41], 5, 6, 7),
        "longer": (*shared, 1, 2, 3, 1, 2, 3, 1, 2),
        "other": tuple(range(33)),
        "one": (9,),
    }
    config = EngineConfig(model="tiny", dtype="float32", page_size=4, max_model_len=128, **settings)
    engine = LLMEngine(loaded, config)
    for turn in ("first", "again"):
        requests = _requests(prompts, 20, turn)
        answers = tokens_of(_staggered(engine, requests))
        _check(oracle, {name + turn: prompt for name, prompt in prompts.items()}, answers)
    engine.check_integrity()
    return engine


def _token_bytes(loaded: LoadedModel) -> int:
    """Bytes of a token in all three layers."""
    return 2 * 3 * loaded.model.config.num_kv_heads * loaded.model.config.head_dim * 4


@pytest.mark.parametrize(
    ("chunk", "prefix_cache", "preempted", "speculation"),
    list(itertools.product((16, 128, WHOLE), (False, True), (False, True), ("off", "ngram"))),
)
@pytest.mark.parametrize("tiny", list(FAMILIES), indirect=True)
def test_every_combination_equals_transformers(
    tiny: tuple[Any, LoadedModel],
    tokens_of: Callable[..., Any],
    *,
    chunk: int,
    prefix_cache: bool,
    preempted: bool,
    speculation: str,
) -> None:
    engine = _serve_twice(
        tiny,
        tokens_of,
        prefill_chunk_tokens=chunk,
        prefix_cache=prefix_cache,
        speculation=speculation,
        kv_cache_bytes=_token_bytes(tiny[1]) * (132 if preempted else 2000),
    )
    stats = engine.stats()
    assert (stats.preemptions_total > 0) is preempted
    if not preempted:
        assert (stats.prefix_hits_total > 0) is prefix_cache


@pytest.mark.parametrize(
    ("chunk", "num_tokens"), [(16, 40), (16, 2000), (WHOLE, 2000)], ids=["tight", "16", "whole"]
)
@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("speculation", ["off", "ngram"])
@pytest.mark.parametrize("tiny", ["Mistral"], indirect=True)
def test_windows_in_all_layers_equal_transformers(
    tiny: tuple[Any, LoadedModel],
    tokens_of: Callable[..., Any],
    *,
    chunk: int,
    num_tokens: int,
    prefix_cache: bool,
    speculation: str,
) -> None:
    """A cache of 40 tokens serves sequences of 98, of which a window of 13 is seen."""
    engine = _serve_twice(
        tiny,
        tokens_of,
        prefill_chunk_tokens=chunk,
        prefix_cache=prefix_cache,
        speculation=speculation,
        kv_cache_bytes=_token_bytes(tiny[1]) * num_tokens,
    )
    stats = engine.stats()
    assert stats.kv_pages_total * 4 <= num_tokens
    assert (stats.preemptions_total > 0) is (num_tokens == 40)
    if num_tokens > 40:
        assert (stats.prefix_hits_total > 0) is prefix_cache


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_packed_answers_depend_on_nothing_but_the_prompt(texts: Prompts, tokens_of: Any) -> None:
    """Packed weights round, but always alike: alone, in chunks, with hits and drafts."""
    loaded = load_model(EngineConfig(model=BUNDLED_NAME))
    if not loaded.is_packed:
        pytest.skip("no C++ compiler: weights are computed unpacked")
    chosen = {name: prompt for name, prompt in texts.items() if len(prompt) <= 512}
    answers: list[dict[str, list[int]]] = []
    for chunk, speculation, prefix_cache in ((16, "ngram", True), (WHOLE, "off", False)):
        config = EngineConfig(
            model=BUNDLED_NAME,
            prefill_chunk_tokens=chunk,
            speculation=speculation,
            prefix_cache=prefix_cache,
            kv_cache_bytes=256 << 20,
        )
        engine = LLMEngine(loaded, config)
        answers.append(tokens_of(_staggered(engine, _requests(chosen, NUM_TOKENS))))
    assert answers[0] == answers[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_needle_is_found_across_8k_tokens() -> None:
    filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. "
    needle = "The secret password of the castle is 'bluebird'. "
    engine = LLMEngine.load(EngineConfig(model=BUNDLED_NAME, max_model_len=8192))
    repeats = 7950 // len(engine.tokenizer.encode_text(filler))
    before = repeats // 10
    text = filler * before + needle + filler * (repeats - before)
    question = ChatMessage("user", text + "\nWhat is the secret password of the castle?")
    params = SamplingParams(temperature=0.0, max_tokens=16)
    events = engine.generate([GenerationRequest("needle", (question,), None, params)])
    finished = events[-1][1]
    assert isinstance(finished, Finished)
    assert finished.prompt_tokens > 7500
    assert "bluebird" in "".join(getattr(event, "text", "") for _, event in events)
