"""What goes between the engine's types and the wire's loses nothing."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from llm_engine import errors, types
from workers import protocol as wire
from workers.chat.stream import StreamEntry, entry_fields
from workers.chat.translation import failure_of, to_engine, to_wire

EVENT = TypeAdapter(wire.ChatEvent)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LOGPROB = st.builds(
    types.TokenLogprob, TEXT, st.floats(-9999, 0), st.lists(st.integers(0, 255)).map(tuple)
)
CALL = st.builds(types.ToolCallDelta, st.integers(0, 3), st.none() | TEXT, st.none() | TEXT, TEXT)
DELTA = st.builds(
    types.TextDelta,
    index=st.integers(0, 7),
    text=TEXT,
    token_ids=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    logprobs=st.none() | st.lists(LOGPROB, max_size=2).map(tuple),
    finish_reason=st.sampled_from([None, "stop", "length", "tool_calls"]),
    reasoning=TEXT,
    tool_calls=st.lists(CALL, max_size=2).map(tuple),
)


def read_back(item):
    """What the gateway makes of what the worker wrote."""
    written = entry_fields("w", [("chat", 0, [to_wire(item)])])
    entry = StreamEntry.parse({key.encode(): value.encode() for key, value in written.items()})
    return entry.parts[0][2][0]


@given(DELTA)
def test_a_delta_is_read_as_it_was_made(delta):
    event = read_back(delta)
    assert isinstance(event, wire.ChatDelta)
    assert event.num_tokens == len(delta.token_ids)
    for name in ("index", "text", "finish_reason", "reasoning"):
        assert getattr(event, name) == getattr(delta, name)
    assert [call.model_dump() for call in event.tool_calls] == [*map(asdict, delta.tool_calls)]
    assert (event.logprobs is None) == (delta.logprobs is None)
    for one, other in zip(event.logprobs or (), delta.logprobs or (), strict=True):
        assert (one.token, one.logprob, one.bytes) == (other.token, other.logprob, other.bytes)


@given(st.lists(st.integers(0, 999), min_size=6, max_size=6))
def test_the_usage_is_read_as_it_was_counted(counts):
    finished = types.Finished(*counts)
    assert read_back(finished).model_dump(exclude={"type"}) == asdict(finished)


@given(st.lists(st.none() | LOGPROB, max_size=4))
def test_scores_are_read_as_they_were_made(entries):
    scored = types.PromptScored(tuple(range(len(entries))), tuple(entries), (1, 2))
    event = read_back(scored)
    assert (event.token_ids, event.first_bytes) == (scored.token_ids, (1, 2))
    assert [e if e is None else e.logprob for e in event.logprobs] == [
        e if e is None else e.logprob for e in entries
    ]


def test_a_whole_request_reaches_the_engine():
    asked = wire.ChatRequest(
        id="chat",
        model="m",
        messages=(
            wire.ChatMessage(role="user", content="hi", name="me"),
            wire.ChatMessage(
                role="assistant",
                content="",
                tool_calls=(wire.ToolCall(id="c", name="f", arguments="{}"),),
                reasoning="hm",
            ),
            wire.ChatMessage(role="tool", content="1", tool_call_id="c"),
        ),
        params=wire.ChatParams(max_tokens=9, min_tokens=2, stop_token_ids=(5,), prompt_logprobs=1),
        tools=wire.ChatToolUse(
            tools=(wire.ChatTool(name="f", parameters='{"type": "object"}', strict=True),),
            mode="required", name="f", parallel=False,
        ),
        constraint=wire.ChatConstraint(kind="regex", source="a+", strict=True),
        adapter="pirate", tenant="key", priority=-3, deadline_s=2.5, cache_salt="salt",
        continue_final_message=True, template_options={"enable_thinking": False},
    )  # fmt: skip
    request = to_engine(asked)
    for name in ("adapter", "tenant", "priority", "deadline_s", "cache_salt"):
        assert getattr(request, name) == getattr(asked, name)
    assert request.continue_final_message
    assert request.template_options == {"enable_thinking": False}
    assert request.constraint == types.Constraint("regex", "a+", True)
    assert request.tools == types.ToolUse(
        (types.Tool("f", "", '{"type": "object"}', True),), "required", "f", False
    )
    assert [asdict(m)["role"] for m in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[1].tool_calls == (types.ToolCall("c", "f", "{}"),)
    assert (request.messages[1].reasoning, request.messages[2].tool_call_id) == ("hm", "c")
    assert (request.params.stop_token_ids, request.params.prompt_logprobs) == ((5,), 1)


def test_every_sampling_parameter_has_its_place_on_the_wire():
    ours = {field.name for field in fields(types.SamplingParams)}
    assert set(wire.ChatParams.model_fields) == ours


def test_every_field_of_a_request_has_its_place_on_the_wire():
    ours = {field.name for field in fields(types.GenerationRequest)} - {"request_id"}
    assert set(wire.ChatRequest.model_fields) - {"id", "model"} == ours


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.ContextLengthExceeded(9000, 8192), 400, "context_length_exceeded"),
        (errors.InvalidRequest("x", param="p"), 400, None),
        (errors.QueueFull(9, 9), 429, "queue_full"),
        (errors.DeadlineExceeded("x"), 408, "deadline_exceeded"),
        (errors.RequestFailed("x"), 500, "engine_error"),
        (errors.EngineDead("x"), 503, "engine_dead"),
    ],
)
def test_errors_have_the_status_they_deserve(error, status, code):
    found = failure_of(error)
    assert (found.status, found.code, found.param) == (status, code, getattr(error, "param", None))
    assert EVENT.validate_python(to_wire(error)) == found
