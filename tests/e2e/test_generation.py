"""Tools, structured output, completions and the cache, with the small model behind the service."""

from __future__ import annotations

import json
import math

import httpx
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

pytestmark = pytest.mark.slow
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def lenient(openai):
    """The client's type says that every token has a score; a prompt's first token has none."""
    return OpenAI(base_url=openai.base_url, api_key=openai.api_key, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(openai):
    return next(m.id for m in openai.models.list() if "smollm2" in m.id)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_forced_call_has_arguments_of_the_schema(openai, model, choice):
    asked = {
        "model": model, "messages": QUESTION, "tools": [WEATHER], "tool_choice": choice,
        "parallel_tool_calls": False, "temperature": 0, "max_tokens": 80,
    }  # fmt: skip
    whole = openai.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    fragments, finish = "", None
    for chunk in openai.chat.completions.create(**asked, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or ():
            fragments += piece.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert (fragments, finish) == (call.function.arguments, "tool_calls")


def test_the_result_of_a_call_is_read(openai, model):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "18 degrees, rain"},
    ]
    answer = openai.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=16
    )
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


class Boat(BaseModel):
    name: str
    masts: int


def test_a_parsed_answer_has_its_type(openai, model):
    answer = openai.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Describe a boat called Ida with two masts."}],
        response_format=Boat,
        temperature=0,
        max_tokens=120,
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(answer.choices[0].message.parsed, Boat)


@pytest.mark.parametrize("stream", [False, True])
def test_choices_and_patterns_bind(openai, model, stream):
    def text(**structured):
        answer = openai.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=20, stream=stream,
            extra_body={"structured_outputs": structured},
        )  # fmt: skip
        if not stream:
            return answer.choices[0].message.content
        return "".join(c.choices[0].delta.content or "" for c in answer)

    assert text(choice=["sunny", "rainy"]) in {"sunny", "rainy"}
    assert len(text(regex="[0-9]{4}")) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_schema_is_refused_and_the_next_request_works(openai, model, stream):
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}
    with pytest.raises(BadRequestError):
        openai.chat.completions.create(
            model=model, messages=QUESTION, response_format=wrong, stream=stream
        )
    answer = openai.chat.completions.create(model=model, messages=QUESTION, max_tokens=4)
    assert answer.usage.completion_tokens <= 4


def test_an_echoed_prompt_is_scored_as_it_is_generated(lenient, model):
    asked = {"model": model, "temperature": 0, "logprobs": 1}
    made = lenient.completions.create(prompt="The capital of France is", max_tokens=6, **asked)
    text = "The capital of France is" + made.choices[0].text
    scored = lenient.completions.create(prompt=text, echo=True, max_tokens=1, **asked).choices[0]
    assert scored.text.startswith(text)
    assert "".join(scored.logprobs.tokens) == scored.text
    num = len(made.choices[0].logprobs.tokens)
    again = scored.logprobs.token_logprobs[-num - 1 : -1]
    for one, other in zip(again, made.choices[0].logprobs.token_logprobs, strict=True):
        assert math.isclose(one, other, abs_tol=2e-2)
    assert scored.logprobs.token_logprobs[0] is None
    starts = scored.logprobs.text_offset
    for start, token in zip(starts, scored.logprobs.tokens, strict=True):
        assert scored.text[start:].startswith(token)


def test_a_prompt_alone_is_scored(lenient, model):
    asked = {"model": model, "echo": True, "logprobs": 0, "max_tokens": 0}
    one = lenient.completions.create(prompt=["Once upon a time"], **asked)
    assert one.usage.completion_tokens == 0
    assert one.choices[0].text == "Once upon a time"
    assert len(one.choices[0].logprobs.tokens) == one.usage.prompt_tokens


def test_an_answer_goes_on_where_it_was_begun(openai, model):
    messages = [*QUESTION, {"role": "assistant", "content": "The weather in Paris is"}]
    answer = openai.chat.completions.create(
        model=model, messages=messages, max_tokens=8, temperature=0,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )  # fmt: skip
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.content.startswith("The weather in Paris is")


def test_a_repeated_prompt_comes_from_the_cache(openai, model):
    long = [{"role": "user", "content": "Sail the sea. " * 60}]
    usages = [
        openai.chat.completions.create(model=model, messages=long, max_tokens=2).usage
        for _ in range(2)
    ]
    cached = usages[1].prompt_tokens_details.cached_tokens
    assert cached > 0.8 * usages[1].prompt_tokens


def test_answers_name_the_plan_that_is_shown(running_service, openai, model):
    raw = openai.chat.completions.with_raw_response.create(
        model=model, messages=QUESTION, max_tokens=1
    )
    with running_service.client() as client:
        rows = client.get("/v1/engine/plan").json()["data"]
    row = next(row for row in rows if row["model"] == model)
    assert raw.headers["x-lanewise-plan"] == row["hash"]
    assert {"rms_norm"} <= {decision["what"] for decision in row["decisions"]}


def test_a_prompt_over_the_limit_is_refused_before_a_stream(running_service, model):
    body = {
        "model": model, "stream": True, "messages": [{"role": "user", "content": "word " * 20_000}],
    }  # fmt: skip
    with running_service.client() as client:
        answer: httpx.Response = client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "8192" in error["message"]
