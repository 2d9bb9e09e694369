"""Requests and settings refuse bad values by name, bound and way out; nothing heavy is imported."""

import subprocess
import sys
from typing import Any

import pytest

from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig, InvalidRequest
from llm_engine.types import ChatMessage, GenerationRequest, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2.0),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("n", 0),
        ("top_logprobs", 21),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("logit_bias", {1: 101.0}),
        ("stop", ("",)),
        ("seed", 2**64),
        ("min_tokens", -1),
    ],
)
def test_sampling_bounds(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(InvalidRequest, match="set logprobs to true"):
        SamplingParams(top_logprobs=3)
    with pytest.raises(InvalidRequest, match="min_tokens is 9"):
        SamplingParams(min_tokens=9, max_tokens=4)


def test_a_request_has_exactly_one_prompt() -> None:
    message = ChatMessage("user", "hi")
    params = SamplingParams()
    for messages, tokens in ((None, None), ((message,), (1,)), ((), None), (None, ())):
        with pytest.raises(InvalidRequest):
            GenerationRequest("a", messages, tokens, params)


@pytest.mark.parametrize(
    "settings",
    [{"model": ""}, {"dtype": "int3"}, {"max_num_seqs": 0}, {"page_size": -1}, {"num_threads": 0}],
)
def test_engine_settings_bounds(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(settings))):
        EngineConfig(**{"model": "m", **settings})


def test_types_import_nothing_heavy() -> None:
    code = (
        "import sys, llm_engine.types, llm_engine.config, llm_engine.scheduler;"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
