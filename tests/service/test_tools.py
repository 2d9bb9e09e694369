"""Tools, reasoning, structured output, adapters and the plan's hash, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from chat_kit import SCHEMA, calling, calls_of, chat, chunks_of, delta, finish_of, joined, script
from gateway_kit import LLM, FakeClient

from service.recent_workers import RECENT_S
from workers.protocol import LLMLimits, WorkerFacts, WorkerState
from workers.store import Store

pytestmark = pytest.mark.anyio


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}}


TOOLS = [tool("weather"), tool("time")]


async def test_calls_come_whole_and_in_fragments(http, client: FakeClient):
    client.script = script(
        *calling('{"a":', " 1}"), *calling("{}", name="time", index=1), finish="tool_calls"
    )
    whole = (await chat(http, tools=TOOLS)).json()["choices"][0]
    assert whole["message"]["content"] is None
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["tool_calls"] == [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"a": 1}'},
        },
        {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]
    chunks = chunks_of(await chat(http, tools=TOOLS, stream=True))
    assert calls_of(chunks) == whole["message"]["tool_calls"]
    assert finish_of(chunks) == "tool_calls"


@pytest.mark.parametrize(
    ("choice", "mode", "name", "offered"),
    [
        (None, "auto", None, ["weather", "time"]),
        ("none", "none", None, ["weather", "time"]),
        ("required", "required", None, ["weather", "time"]),
        (
            {"type": "function", "function": {"name": "time"}},
            "required",
            "time",
            ["weather", "time"],
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "time"}}],
                },
            },
            "required",
            None,
            ["time"],
        ),
    ],
)
async def test_choices_reach_the_engine(http, client: FakeClient, choice, mode, name, offered):
    more = {} if choice is None else {"tool_choice": choice}
    answer = await chat(http, tools=TOOLS, parallel_tool_calls=False, **more)
    assert answer.status_code == 200, answer.text
    use = client.requests[-1].tools
    assert use is not None
    assert (use.mode, use.name, use.parallel) == (mode, name, False)
    assert [one.name for one in use.tools] == offered
    assert json.loads(use.tools[0].parameters) == SCHEMA
    assert use.tools[0].strict


@pytest.mark.parametrize("fields", [{}, {"parameters": None}, {"parameters": {}}])
async def test_a_function_without_parameters_takes_none(http, client: FakeClient, fields):
    tool = {"type": "function", "function": {"name": "now", **fields}}
    answer = await chat(http, tools=[tool])
    assert answer.status_code == 200, answer.text
    use = client.requests[-1].tools
    assert use is not None
    schema = json.loads(use.tools[0].parameters)
    assert (schema["type"], schema["properties"]) == ("object", {})
    assert schema["additionalProperties"] is False


async def test_a_conversation_with_calls_reaches_the_engine(http, client: FakeClient):
    call = {"id": "call_9", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    await chat(
        http,
        tools=TOOLS,
        messages=[
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "content": "12:00", "tool_call_id": "call_9"},
        ],
    )
    _, assistant, answer = client.requests[-1].messages
    assert (assistant.content, assistant.reasoning) == ("", "hm")
    assert (assistant.tool_calls[0].id, assistant.tool_calls[0].name) == ("call_9", "time")
    assert answer.tool_call_id == "call_9"


async def test_reasoning_is_apart_from_the_answer(http, client: FakeClient):
    client.script = script(delta(reasoning="Let me "), delta(reasoning="think."), delta("42"))
    message = (await chat(http)).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("42", "Let me think.")
    chunks = chunks_of(await chat(http, stream=True))
    assert joined(chunks, "reasoning_content") == "Let me think."
    assert joined(chunks) == "42"


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA},
                }
            },
            "json_schema",
            json.dumps(SCHEMA, separators=(",", ":")),
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            "json_schema",
            json.dumps(SCHEMA, separators=(",", ":")),
        ),
        ({"structured_outputs": {"regex": "[a-z]+"}}, "regex", "[a-z]+"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "choice", '["yes", "no"]'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "grammar", 'start: "a"'),
    ],
)
async def test_what_binds_the_answer_reaches_the_engine(http, client, fields, kind, source):
    assert (await chat(http, **fields)).status_code == 200
    constraint = client.requests[-1].constraint
    assert (constraint is None) == (kind is None)
    if constraint is not None:
        assert (constraint.kind, constraint.source) == (kind, source)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high", "enable_thinking": True}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        ({}, {}),
    ],
)
async def test_template_options_reach_the_engine(http, client: FakeClient, fields, options):
    assert (await chat(http, **fields)).status_code == 200
    assert client.requests[-1].template_options == options


async def test_the_key_and_the_urgency_travel_along(http, client: FakeClient):
    await chat(
        http, cache_salt="mine", priority=-5, deadline_s=30, min_tokens=2, stop_token_ids=[5]
    )
    asked = client.requests[-1]
    assert asked.tenant.startswith("key_")
    assert (asked.priority, asked.deadline_s, asked.cache_salt) == (-5, 30, "mine")
    assert (asked.params.min_tokens, asked.params.stop_token_ids) == (2, (5,))


def publish(store: Store, **more: Any) -> None:
    now = datetime.now(UTC)
    llm = LLMLimits(max_model_len=2048, vocab_size=1000, adapters=("pirate",))
    facts = WorkerFacts(
        id="llm-1",
        role="llm",
        model=LLM,
        state=WorkerState.IDLE,
        llm=llm,
        started_at=now,
        beat_at=now,
        **more,
    )
    store.workers.publish(facts)


@pytest.mark.parametrize("name", ["pirate", f"{LLM}:pirate"])
async def test_a_model_may_be_an_adapter(
    http: httpx.AsyncClient, client: FakeClient, store: Store, name: str
):
    publish(store)
    answer = await chat(http, model=name)
    assert answer.json()["model"] == name
    assert (client.requests[-1].model, client.requests[-1].adapter) == (LLM, "pirate")
    models = {m["id"]: m for m in (await http.get("/v1/models")).json()["data"]}
    assert models["pirate"]["parent"] == LLM
    missing = await chat(http, model=f"{LLM}:ninja")
    assert missing.status_code == 404
    assert "pirate" in missing.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_name_the_plan(http: httpx.AsyncClient, store: Store, stream: bool):
    assert "x-lanewise-plan" not in (await chat(http, stream=stream)).headers
    publish(store, plan={"hash": "abc123"})
    await asyncio.sleep(RECENT_S)
    assert (await chat(http, stream=stream)).headers["x-lanewise-plan"] == "abc123"
    decision = {"subject": "prefix_cache", "chosen": "radix", "reasons": ["asked for"]}
    publish(store, plan={"hash": "abc123"}, card={"plan_hash": "ff00"}, decisions=(decision,))
    await asyncio.sleep(RECENT_S)
    answer = await chat(http, stream=stream)
    assert answer.headers["x-lanewise-plan"] == "ff00"
    row = (await http.get("/v1/engine/plan")).json()["data"]
    found = next(one for one in row if one["model"] == LLM)
    assert (found["hash"], found["decisions"]) == ("ff00", [decision])


async def test_the_engines_counters_are_shown_and_scraped(http: httpx.AsyncClient, store: Store):
    stats = {"running": 3, "generated_tokens_total": 70, "cache_misses": {"cold": 2, "evicted": 1}}
    publish(store, stats=stats)
    rows = (await http.get("/v1/engine/stats")).json()["data"]
    assert next(row for row in rows if row["model"] == LLM)["stats"] == stats
    text = (await http.get("/metrics")).text
    labels = f'model="{LLM}",role="llm",worker="llm-1"'
    assert f'lanewise_engine_running{{kind="",{labels}}} 3.0' in text
    assert f'lanewise_engine_generated_tokens_total{{kind="",{labels}}} 70.0' in text
    assert f'lanewise_engine_cache_misses{{kind="evicted",{labels}}} 1.0' in text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": [tool("f")], "structured_outputs": {"regex": "\ud800"}},
            "structured_outputs.regex",
        ),
        ({"structured_outputs": {"choice": ["\ud800"]}}, "structured_outputs.choice.0"),
        ({"structured_outputs": {"json": {"const": "\ud800"}}}, "structured_outputs.json"),
        ({"chat_template_kwargs": {"a": ["\ud800"]}}, "chat_template_kwargs"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content.0.text"),
    ],
)
async def test_half_a_character_is_refused(http: httpx.AsyncClient, fields, param):
    raw = json.dumps({"model": LLM, "messages": [{"role": "user", "content": "x"}], **fields})
    answer = await http.post(
        "/v1/chat/completions", content=raw, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
