"""POST /v1/chat/completions with a scripted model."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest
from gateway_kit import LLM, FakeClient, publish_workers, words

from workers.chat.translation import to_engine
from workers.errors import StorageFull
from workers.protocol import ChatDelta, ChatDone, ChatFailed, TokenLogprob, WorkerState
from workers.store import Store

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"


def body(**more: Any) -> dict[str, Any]:
    return {"model": LLM, "messages": [{"role": "user", "content": "Hi"}], **more}


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}}}


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth else {}


async def ask(http: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await http.post(URL, json=body(**more))


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The JSON of each event of a stream that ends properly."""
    events = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The joined text of one choice."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(c["delta"].get("content") or "" for c in choices if c["index"] == index)


async def test_a_whole_answer_has_openais_shape(http: httpx.AsyncClient) -> None:
    answer = await ask(http, metadata={"shot": "010"})
    content = answer.json()
    assert answer.status_code == 200
    assert content["id"].startswith("chatcmpl-")
    assert content["object"] == "chat.completion"
    assert content["metadata"] == {"shot": "010"}
    assert content["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert content["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    assert answer.headers["x-request-id"]


async def test_a_stream_begins_with_the_role_and_ends_with_done(http: httpx.AsyncClient) -> None:
    answer = await ask(http, stream=True)
    chunks = chunks_of(answer.text)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert chunks[-1]["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_empty_stream_options_bring_no_usage(http: httpx.AsyncClient) -> None:
    chunks = chunks_of((await ask(http, stream=True, stream_options={})).text)
    assert all("usage" not in chunk for chunk in chunks)


async def test_the_usage_chunk_is_one_last_and_empty(
    http: httpx.AsyncClient, client: FakeClient
) -> None:
    client.script = words("a", "b", "c", n=2)
    chunks = chunks_of(
        (await ask(http, stream=True, n=2, stream_options={"include_usage": True})).text
    )
    whole = (await ask(http, n=2)).json()
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["choices"] for chunk in chunks[:-1])
    assert [text_of(chunks, i) for i in (0, 1)] == ["abc", "abc"]


@pytest.mark.parametrize(
    "texts", [("😀", " ď", "你好"), ("",), ("a" * 5000,), ("\u2028", "\n\n", "data: x")]
)
async def test_the_joined_stream_equals_the_whole_answer(
    http: httpx.AsyncClient, client: FakeClient, texts: tuple[str, ...]
) -> None:
    client.script = words(*texts)
    whole = (await ask(http)).json()["choices"][0]["message"]["content"]
    assert text_of(chunks_of((await ask(http, stream=True)).text)) == whole == "".join(texts)


async def test_a_stopped_answer_without_text(http: httpx.AsyncClient, client: FakeClient) -> None:
    client.script = words()
    chunks = chunks_of((await ask(http, stream=True, stop=["DEFGHIJ"])).text)
    assert text_of(chunks) == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_length_is_reported(http: httpx.AsyncClient, client: FakeClient) -> None:
    client.script = words("a", finish="length")
    assert (await ask(http)).json()["choices"][0]["finish_reason"] == "length"
    chunks = chunks_of((await ask(http, stream=True)).text)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_logprobs_belong_to_their_tokens(http: httpx.AsyncClient, client: FakeClient) -> None:
    token = TokenLogprob(token="a", logprob=-0.5, bytes=(97,))
    other = TokenLogprob(token="b", logprob=-1.5, bytes=(98,), top=(token,))
    client.script = [
        ChatDelta(index=0, text="", num_tokens=1, logprobs=(token,)),
        ChatDelta(index=0, text="ab", num_tokens=1, logprobs=(other,), finish_reason="stop"),
        ChatDone(prompt_tokens=1, completion_tokens=2),
    ]
    whole = (await ask(http, logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    chunks = chunks_of((await ask(http, logprobs=True, stream=True)).text)
    joined = [
        entry
        for chunk in chunks
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    alternative = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert whole == joined
    assert whole[0] == {**alternative, "top_logprobs": []}
    assert whole[1]["top_logprobs"] == [alternative]


async def test_sampling_reaches_the_worker(http: httpx.AsyncClient, client: FakeClient) -> None:
    await ask(
        http, temperature=0, top_p=0, top_k=-1, min_p=0.1, max_tokens=9, max_completion_tokens=3,
        stop="END", seed=5, logit_bias={"7": -100}, repetition_penalty=1.1, n=None,
    )  # fmt: skip
    params = client.requests[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0, 0, 0.1)
    assert (params.max_tokens, params.stop, params.seed, params.n) == (3, ("END",), 5, 1)
    assert params.logit_bias == {7: -100}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
async def test_parts_are_joined_as_they_stand(
    http: httpx.AsyncClient, client: FakeClient, role: str
) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    for content in (parts, "one two"):
        more = {"tool_call_id": "call_1"} if role == "tool" else {}
        await http.post(URL, json=body(messages=[{"role": role, "content": content, **more}]))
    assert client.requests[-1].messages == client.requests[-2].messages
    assert client.requests[-1].messages[0].content == "one two"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages.0.role", None),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages.0.content", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"max_tokens": -5}, "max_tokens", None),
        ({"max_completion_tokens": 0}, "max_completion_tokens", None),
        ({"max_tokens": 2**63}, "max_tokens", None),
        ({"max_tokens": 5000}, "max_tokens", "context_length_exceeded"),
        ({"max_tokens": True}, "max_tokens", None),
        ({"n": 10_000}, "n", None),
        ({"n": 0}, "n", None),
        ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs", None),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias", None),
        ({"logit_bias": {"1000": 1}}, "logit_bias", None),
        ({"logit_bias": {"x": 1}}, "logit_bias", None),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", None),
        ({"stop": ["x"] * 100_000}, "stop", None),
        ({"stop": ""}, "stop.0", None),
        ({"seed": 2**64}, "seed", None),
        ({"seed": -(2**63) - 1}, "seed", None),
        ({"seed": 1.5}, "seed", None),
        ({"temperature": -1}, "temperature", None),
        ({"temperature": 1e308}, "temperature", None),
        ({"temperature": "0.5"}, "temperature", None),
        ({"top_p": 1.5}, "top_p", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", None),
        (
            {"messages": [{"role": "function", "content": "x"}]},
            "messages.0",
            "unsupported_parameter",
        ),
        ({"tools": [{"type": "function"}]}, "tools.0.function", None),
        ({"tools": [{"type": "custom"}]}, "tools.0.type", "unsupported_parameter"),
        ({"tools": [tool("a b")]}, "tools.0.function.name", None),
        ({"tools": [tool("f"), tool("f")]}, "tools", None),
        ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tools": [tool("f")], "tool_choice": "maybe"}, "tool_choice", None),
        (
            {"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
            None,
        ),
        (
            {"tools": [tool("f", {"a": "x" * 300_000})]},
            "tools.0.function.parameters",
            None,
        ),
        ({"tools": [tool("f", nested(80))]}, "tools.0.function.parameters", None),
        (
            {"tools": [tool("f", {"$ref": "file:///etc/passwd"})]},
            "tools.0.function.parameters",
            None,
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", None),
        ({"structured_outputs": {}}, "structured_outputs", None),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", None),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", None),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            None,
        ),
        ({"guided_regex": "a"}, "guided_regex", "unsupported_parameter"),
        ({"continue_final_message": True}, "continue_final_message", None),
        ({"add_generation_prompt": False}, "add_generation_prompt", None),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", None),
        ({"reasoning_effort": "much"}, "reasoning_effort", None),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", None),
        ({"stop_token_ids": [1000]}, "stop_token_ids", None),
        ({"priority": 101}, "priority", None),
        ({"deadline_s": 0}, "deadline_s", None),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata", None),
        ({"metadata": {"k": "x" * 513}}, "metadata.k", None),
        ({"model": None}, "model", None),
    ],
)
async def test_bad_fields_are_named(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, code: str | None
) -> None:
    for stream in (False, True):
        more = {} if "stream_options" in fields else {"stream": stream}
        answer = await ask(http, **fields, **more)
        error = answer.json()["error"]
        assert answer.status_code == 400, answer.text
        assert (error["param"], error["code"]) == (param, code)
        assert error["type"] == "invalid_request_error"
        assert error["message"]


@pytest.mark.parametrize("seed", [-1, -(2**63), 0, 2**63, 2**64 - 1])
async def test_seeds_have_64_bits_with_a_sign_or_without(
    http: httpx.AsyncClient, client: FakeClient, seed: int
) -> None:
    assert (await ask(http, seed=seed)).status_code == 200
    assert client.requests[-1].params.seed == seed
    to_engine(client.requests[-1])  # which has bounds of its own


async def test_a_refusal_told_again_is_text(http: httpx.AsyncClient, client: FakeClient) -> None:
    parts = [{"type": "refusal", "refusal": "No, "}, {"type": "text", "text": "sorry."}]
    turns = [{"role": "assistant", "content": parts}, {"role": "user", "content": "Why?"}]
    assert (await ask(http, messages=turns)).status_code == 200
    assert client.requests[-1].messages[0].content == "No, sorry."
    broken = await ask(http, messages=[{"role": "user", "content": [{"type": "refusal"}]}])
    assert broken.json()["error"]["param"] == "messages.0.content.0.text"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_disk_is_the_cause_that_is_told(
    http: httpx.AsyncClient, client: FakeClient, stream: bool
) -> None:
    client.script = [StorageFull()]
    answer = await ask(http, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_full")
    assert "free some room" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"]


@pytest.mark.parametrize(("is_full", "code"), [(True, "storage_full"), (False, None)])
async def test_a_worker_is_not_heard_for_want_of_room(
    http: httpx.AsyncClient,
    client: FakeClient,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    is_full: bool,
    code: str | None,
) -> None:
    def full() -> None:
        raise StorageFull

    (worker,) = [w for w in store.workers.list() if w.role == "llm"]
    before = worker.beat_at - timedelta(minutes=5)
    store.workers.publish(worker.model_copy(update={"beat_at": before}))
    if is_full:
        monkeypatch.setattr(client, "check_room", full)
    answer = await ask(http)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == (code or "no_worker_for_model")
    missing = (await http.get("/readyz")).json()["not_ready"]
    assert ("storage" in {entry["what"] for entry in missing}) is is_full


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "service_tier": "auto", "verbosity": "low", "safety_identifier": "x"},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"modalities": ["text"], "some_vendor_extra": {"a": 1}},
        {"max_tokens": None, "temperature": None, "stop": None, "stream_options": None},
    ],
)
async def test_harmless_fields_are_ignored(http: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    assert (await ask(http, **fields)).status_code == 200


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:6379/",
        "http://[::ffff:127.0.0.1]/",
        "http://0x7f.1/",
        "http://localhost.:80/",
        "https://example.com/a.png",
        "file:///etc/passwd",
    ],
)
async def test_image_addresses_are_never_fetched(http: httpx.AsyncClient, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    answer = await ask(http, messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_image_url"


async def test_pictures_are_refused_by_a_text_model(http: httpx.AsyncClient) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answer = await ask(http, messages=[{"role": "user", "content": [part]}])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages.0.content.0"


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_before_the_first_token_have_a_real_status(
    http: httpx.AsyncClient, client: FakeClient, stream: bool
) -> None:
    client.script = [
        ChatFailed(
            status=400,
            code="context_length_exceeded",
            message="the prompt has 9000 tokens, but this model holds 2048",
            param="messages",
        )
    ]
    answer = await ask(http, stream=stream)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_failures_in_mid_stream_are_one_event(
    http: httpx.AsyncClient, client: FakeClient
) -> None:
    delta = ChatDelta(index=0, text="a", num_tokens=1)
    client.script = [delta, ChatFailed(status=500, code="engine_died", message="it broke")]
    answer = await ask(http, stream=True)
    last = answer.text.strip().split("\n\n")[-1]
    assert answer.status_code == 200
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_died"
    assert "[DONE]" not in answer.text
    assert (await ask(http)).status_code == 500


async def test_events_that_end_early_are_an_error(
    http: httpx.AsyncClient, client: FakeClient
) -> None:
    client.script = [ChatDelta(index=0, text="a", num_tokens=1), RuntimeError("bug")]
    assert "answer_incomplete" in (await ask(http, stream=True)).text
    assert (await ask(http)).json()["error"]["code"] == "answer_incomplete"


async def test_unknown_models_are_404(http: httpx.AsyncClient) -> None:
    answer = await ask(http, model="nobody")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert LLM in answer.json()["error"]["message"]


async def test_a_loading_model_is_503_with_retry_after(
    http: httpx.AsyncClient, store: Store
) -> None:
    publish_workers(store, state=WorkerState.LOADING)
    answer = await ask(http)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_worker_for_model"
    assert int(answer.headers["retry-after"]) > 0
