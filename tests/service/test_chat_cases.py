"""Known failure kinds of chat servers, one test for each, over HTTP with a scripted model.

What the engine decides (where a stop string cuts, which token is the likeliest) is scripted here
and tested in tests/llm_engine; these tests hold what the service makes of it.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from chat_kit import (
    CHAT,
    COMPLETIONS,
    SCHEMA,
    calling,
    calls_of,
    chat,
    chunks_of,
    complete,
    delta,
    finish_of,
    joined,
    scored,
    script,
    user,
)
from gateway_kit import LLM, FakeClient, words

from workers.protocol import ChatDone, ChatFailed

pytestmark = pytest.mark.anyio
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_c1_a_stop_string_over_all_the_text_leaves_no_content(http, client: FakeClient):
    client.script = words()
    chunks = chunks_of(await chat(http, stream=True, stop=["DEFGHIJ"]))
    assert joined(chunks) == ""
    assert finish_of(chunks) == "stop"
    assert client.requests[-1].params.stop == ("DEFGHIJ",)


async def test_c2_characters_stay_whole(http, client: FakeClient):
    client.script = script(delta(), delta(), delta("😀"), delta(), delta("ď"))
    chunks = chunks_of(await chat(http, stream=True))
    whole = (await chat(http)).json()["choices"][0]["message"]["content"]
    assert joined(chunks) == whole == "😀ď"


async def test_c3_empty_stream_options_bring_no_usage(http):
    chunks = chunks_of(await chat(http, stream=True, stream_options={}))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_c4_one_usage_chunk_comes_last_and_sums_the_choices(http, client: FakeClient):
    client.script = words("a", "b", n=2)
    asked = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
    chunks = chunks_of(await chat(http, **asked))
    assert [c["usage"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4


async def test_c5_stream_options_without_a_stream_are_refused(http):
    answer = await chat(http, stream=False, stream_options={"include_usage": True})
    assert error_of(answer)["param"] == "stream_options"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -5])
async def test_c6_lengths_below_one_are_refused(http, name: str, value: int):
    assert error_of(await chat(http, **{name: value}))["param"] == name


async def test_c7_a_null_length_is_unset(http, client: FakeClient):
    assert (await complete(http, max_tokens=None)).status_code == 200
    assert client.requests[-1].params.max_tokens == 16
    assert (await chat(http, max_tokens=None)).status_code == 200
    assert client.requests[-1].params.max_tokens is None


async def test_c8_the_newer_length_wins(http, client: FakeClient):
    client.script = words("a", "b", "c", finish="length")
    answer = (await chat(http, max_completion_tokens=3, max_tokens=9)).json()
    assert client.requests[-1].params.max_tokens == 3
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_c9_no_messages_is_said_in_words(http):
    error = error_of(await chat(http, messages=[]))
    assert error["type"] == "invalid_request_error"
    assert "index out of range" not in error["message"]


@pytest.mark.parametrize("url", [CHAT, COMPLETIONS])
async def test_c10_what_is_no_json_is_a_json_error(http: httpx.AsyncClient, url: str):
    headers = {"content-type": "application/json"}
    answer = await http.post(url, content=b'{"model": "x", x}', headers=headers)
    assert "JSON" in error_of(answer)["message"]


@pytest.mark.parametrize("ask", [chat, complete])
async def test_c11_a_json_schema_must_be_there(http, ask):
    error = error_of(await ask(http, response_format={"type": "json_schema"}))
    assert error["param"] == "response_format.json_schema"


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "context_length_exceeded"), (400, None), (429, "queue_full"), (503, "engine_dead")],
)
async def test_c12_refusals_have_a_status_before_any_byte_of_a_stream(
    http, client: FakeClient, ask, status: int, code: str | None
):
    message = "the prompt has 9000 tokens, but this model holds 2048"
    client.script = [0.05, ChatFailed(status=status, code=code, message=message, param="messages")]
    answer = await ask(http, stream=True)
    error = error_of(answer, status)
    assert answer.headers["content-type"] == "application/json"
    assert error["code"] == (code or error["code"])
    assert "9000" in error["message"]
    assert "2048" in error["message"]
    assert ("retry-after" in answer.headers) == (status in {429, 503})


async def test_c13_an_answer_cut_by_the_context_is_length_and_not_empty(http, client: FakeClient):
    client.script = words("a", finish="length")
    answer = (await chat(http, max_tokens=2048)).json()["choices"][0]
    assert (answer["finish_reason"], answer["message"]["content"]) == ("length", "a")


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_c14_parts_make_the_same_prompt_as_one_text(http, client: FakeClient, role: str):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    more = {"tool_call_id": "call_1"} if role == "tool" else {}
    for content in (parts, "one two"):
        await chat(http, messages=[{"role": role, "content": content, **more}])
    assert client.requests[-1].messages == client.requests[-2].messages


async def test_c15_the_developer_reaches_the_engine(http, client: FakeClient):
    await chat(http, messages=[{"role": "developer", "content": "Be brief."}, user()])
    assert [m.role for m in client.requests[-1].messages] == ["developer", "user"]


async def test_c16_one_assistant_message_alone_is_served(http, client: FakeClient):
    alone = [{"role": "assistant", "content": "Once upon"}]
    assert (await chat(http, messages=alone)).status_code == 200
    assert not client.requests[-1].continue_final_message
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    assert (await chat(http, messages=alone, **asked)).status_code == 200
    assert client.requests[-1].continue_final_message


async def test_c17_alternatives_belong_to_their_tokens(http, client: FakeClient):
    tokens = tuple(scored(text) for text in "abc")
    client.script = script(delta("abc", logprobs=tokens))
    for asked in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}):
        found = (await chat(http, **asked)).json()["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in found] == ["a", "b", "c"]
        assert all(entry["top_logprobs"][0]["token"] == "!" for entry in found)
    client.script = script(delta("a", logprobs=(scored("a").model_copy(update={"top": ()}),)))
    found = (await chat(http, logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert found == [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]


async def test_c18_no_call_is_no_reason_to_call(http, client: FakeClient):
    client.script = script(delta("no"), finish="tool_calls")
    asked = {"tools": [TOOL], "tool_choice": "required"}
    whole = (await chat(http, **asked)).json()["choices"][0]
    assert whole["finish_reason"] == "stop"
    assert "tool_calls" not in whole["message"]
    assert finish_of(chunks_of(await chat(http, stream=True, **asked))) == "stop"
    client.script = script(*calling('{"a'), finish="length")
    assert (await chat(http, **asked)).json()["choices"][0]["finish_reason"] == "length"
    chunks = chunks_of(await chat(http, stream=True, **asked))
    assert finish_of(chunks) == "length"
    assert calls_of(chunks)[0]["function"]["arguments"] == '{"a'


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_p": 0}])
async def test_c19_zero_stays_zero(http, client: FakeClient, fields: dict[str, int]):
    assert (await chat(http, **fields)).status_code == 200
    params = client.requests[-1].params
    assert {name: getattr(params, name) for name in fields} == fields


async def test_c20_only_the_last_chunk_has_a_reason(http, client: FakeClient):
    client.script = words("a", "b", finish="length")
    assert finish_of(chunks_of(await chat(http, stream=True))) == "length"


async def test_c21_a_users_stop_leaves_the_models_own_end(http, client: FakeClient):
    await chat(http, stop=["###"])
    assert not client.requests[-1].params.ignore_eos


async def test_c22_text_before_an_unfinished_call_is_delivered(http, client: FakeClient):
    client.script = script(delta("Let me see. "), *calling('{"city": "Par'), finish="stop")
    chunks = chunks_of(await chat(http, stream=True, tools=[TOOL], stop=["is"]))
    assert joined(chunks) == "Let me see. "
    assert finish_of(chunks) == "stop"
    assert (await chat(http, tools=[TOOL])).json()["choices"][0]["message"]["content"]


async def test_c23_completions_have_the_classic_logprobs(http, client: FakeClient):
    client.script = script(delta("ab", logprobs=(scored("a"), scored("b"))))
    found = (await complete(http, logprobs=1)).json()["choices"][0]["logprobs"]
    assert found["tokens"] == ["a", "b"]
    assert found["token_logprobs"] == [-1.0, -1.0]
    assert found["text_offset"] == [0, 1]
    assert found["top_logprobs"] == [{"!": -0.25, "a": -1.0}, {"!": -0.25, "b": -1.0}]


async def test_c24_headers_do_not_change_an_error(http: httpx.AsyncClient):
    found = [
        (await http.post(CHAT, json={"model": LLM, "messages": []}, headers=headers)).json()
        for headers in ({}, {"accept": "text/event-stream"}, {"x-stainless-retry-count": "1"})
    ]
    assert found[0] == found[1] == found[2]


async def test_c25_unknown_roles_are_refused(http):
    answer = await chat(http, messages=[{"role": "bot", "content": "x"}])
    assert error_of(answer)["param"] == "messages.0.role"


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize("stream", [False, True])
async def test_c26_stops_in_the_output_are_asked_for_on_every_path(http, client, ask, stream):
    await ask(http, stream=stream, stop=["."], include_stop_str_in_output=True)
    assert client.requests[-1].params.include_stop_str_in_output


@pytest.mark.parametrize("ask", [chat, complete])
async def test_c27_a_failure_in_mid_stream_is_one_event(http, client: FakeClient, ask):
    client.script = [delta("a"), ChatFailed(status=500, code="engine_error", message="it broke")]
    answer = await ask(http, stream=True)
    events = answer.text.strip().split("\n\n")
    assert answer.status_code == 200
    assert '"a"' in "".join(events[:-1])
    assert json.loads(events[-1].removeprefix("data: "))["error"]["message"] == "it broke"
    assert "[DONE]" not in answer.text


async def test_a_passed_deadline_is_the_callers_own(http, client: FakeClient):
    client.script = [ChatFailed(status=408, code="deadline_exceeded", message="after 0.5 s")]
    answer = await chat(http, deadline_s=0.5)
    assert error_of(answer, 408)["code"] == "deadline_exceeded"
    assert answer.headers["x-should-retry"] == "false"
    assert client.requests[-1].deadline_s == 0.5


async def test_usage_says_what_was_reasoning_and_what_was_drafted(http, client: FakeClient):
    done = ChatDone(
        prompt_tokens=5, completion_tokens=9, cached_tokens=4, reasoning_tokens=3,
        accepted_draft_tokens=2, rejected_draft_tokens=1,
    )  # fmt: skip
    client.script = [*script(delta("a"))[:-1], done]
    assert (await chat(http)).json()["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 9,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {
            "reasoning_tokens": 3,
            "accepted_prediction_tokens": 2,
            "rejected_prediction_tokens": 1,
        },
    }
