"""Conversations for models that answer on channels: past turns, and requests prepared whole."""

import json
from dataclasses import replace
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from llm_engine.chat.channel_parser import ChannelParser
from llm_engine.chat.channels import HARMONY
from llm_engine.chat.chat_format import ChatFormat
from llm_engine.chat.decision import chat_decision
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidRequest
from llm_engine.loader import LoadedModel
from llm_engine.prompt import Preparer
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import (
    ChatMessage,
    Constraint,
    GenerationRequest,
    SamplingParams,
    TextDelta,
    Tool,
    ToolCall,
    ToolUse,
)
from tests.llm_engine.chat import templates

TOOL = Tool("look_up", "Looks up.", '{"type":"object","properties":{"q":{"type":"string"}}}')
TOOL_ENTRY = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up.",
        "parameters": json.loads(TOOL.parameters),
    },
}
CALL = ToolCall("c1", "look_up", '{"q": "Łódź"}')
OTHER = ToolCall("c2", "look_up", '{"q": "Oslo"}')
USER = ChatMessage("user", "Where?")


def chat() -> ChatFormat:
    return ChatFormat(templates.HARMONY_LIKE, templates.SPECIAL)


def oracle(*entries: dict[str, Any], **variables: Any) -> str:
    rendered, _ = render_jinja_template(
        conversations=[list(entries)],
        chat_template=templates.HARMONY_LIKE,
        **{"add_generation_prompt": True, **templates.SPECIAL, **variables},
    )
    return rendered[0]


def call_entry(call: ToolCall, **fields: Any) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    calls = [{"id": call.id, "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls, **fields}


def test_the_template_tells_the_family() -> None:
    family = chat().family
    assert family.channels is HARMONY
    assert family.knows_tools
    decision = chat_decision(family)
    assert decision.chosen == "harmony"
    assert "reasoning: the analysis channel" in decision.reasons
    assert ChatFormat(templates.QWEN3_LIKE, templates.SPECIAL).family.channels is None


def test_a_call_and_its_thoughts_are_shown() -> None:
    turns = [
        ChatMessage("system", "Be kind."),
        USER,
        ChatMessage("assistant", "", tool_calls=(CALL,), reasoning="Look it up."),
        ChatMessage("tool", 'found: "it"', tool_call_id="c1"),
    ]
    expected = oracle(
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Where?"},
        call_entry(CALL, thinking="Look it up."),
        {"role": "tool", "content": 'found: "it"', "tool_call_id": "c1"},
        tools=[TOOL_ENTRY],
        reasoning_effort="high",
    )
    text = chat().render(turns, tools=[TOOL], options={"reasoning_effort": "high"})
    assert text == expected
    assert "Look it up." in text
    assert text.endswith("<|start|>assistant")


def test_parallel_calls_become_turns_with_their_results() -> None:
    """A template of one call a turn would lose the second."""
    turns = [
        USER,
        ChatMessage("assistant", "Both.", tool_calls=(CALL, OTHER), reasoning="Two."),
        ChatMessage("tool", "north", tool_call_id="c2"),
        ChatMessage("tool", "east", tool_call_id="c1"),
        ChatMessage("tool", "whose?", tool_call_id="c9"),
        ChatMessage("assistant", "East and north."),
    ]
    text = chat().render(turns, tools=[TOOL])
    shown = [
        text.index(part) for part in ("Two.\nBoth.", "Łódź", "east", "Oslo", "north", "whose?")
    ]
    assert shown == sorted(shown)
    assert text.count("to=functions.look_up") == 2
    assert text.count("<|channel|>analysis") == 1


def test_a_message_to_be_continued_is_in_the_final_channel() -> None:
    turns = [USER, ChatMessage("assistant", "It is in")]
    text = chat().render(turns, continues_last=True)
    assert text.endswith("<|channel|>final<|message|>It is in")
    assert chat().channel_start(HARMONY, {}, continues_last=True) == "final"
    assert chat().channel_start(HARMONY, {}, continues_last=False) == "header"


@pytest.mark.parametrize(
    ("opening", "start"),
    [
        ("<|start|>assistant", "header"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "analysis"),
        ("<|start|>assistant<|channel|>final<|message|>", "final"),
    ],
)
def test_the_prompt_says_where_the_answer_begins(opening: str, start: str) -> None:
    template = templates.HARMONY_LIKE.replace(
        "'<|start|>assistant' }}{%- endif", f"'{opening}' }}}}{{%- endif"
    )
    chat_format = ChatFormat(template, templates.SPECIAL)
    assert chat_format.render([USER]).endswith(opening)
    assert chat_format.channel_start(HARMONY, {}, continues_last=False) == start


@pytest.fixture
def preparer(tiny_loaded: LoadedModel) -> Any:
    parts = replace(tiny_loaded.tokenizer._parts, chat_template=templates.HARMONY_LIKE)
    made = Preparer(
        Tokenizer(parts),
        vocab_size=257,
        max_model_len=512,
        eos_token_ids=tiny_loaded.eos_token_ids,
        grammar_timeout_s=20.0,
    )
    yield made
    made.close()


def _request(**fields: Any) -> GenerationRequest:
    given = {"messages": (USER,), "prompt_token_ids": None, **fields}
    return GenerationRequest("r", params=SamplingParams(), **given)


def test_a_request_gets_its_parser_and_grammar(preparer: Preparer) -> None:
    plain = preparer.prepare(_request())
    assert plain.matcher is None
    assert plain.parser is not None
    assert isinstance(plain.parser(), ChannelParser)
    forced = preparer.prepare(_request(tools=ToolUse((TOOL,), mode="required")))
    assert forced.matcher is not None
    matcher = forced.matcher()
    text = b'<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"q":"a"}'
    assert all(matcher.accept(byte) for byte in text)
    assert matcher.is_finished or matcher.accept(256)
    bound = preparer.prepare(_request(constraint=Constraint("choice", '["yes"]'))).matcher
    assert bound is not None
    assert not bound().accept(ord("y"))
    assert bound().accept(ord("<"))


def test_an_engine_calls_on_channels(tiny_loaded: LoadedModel) -> None:
    """Random weights under the grammar: a bias keeps them from thoughts and white space."""
    parts = replace(tiny_loaded.tokenizer._parts, chat_template=templates.HARMONY_LIKE)
    loaded = replace(tiny_loaded, tokenizer=Tokenizer(parts))
    engine = LLMEngine(loaded, EngineConfig(model="tiny", dtype="float32", speculation="off"))
    schema = {"type": "object", "properties": {"q": {"enum": ["x"]}}, "required": ["q"]}
    schema["additionalProperties"] = False
    tool = replace(TOOL, parameters=json.dumps(schema), strict=True)
    bias = dict.fromkeys(b"a \n\t", -100.0)
    request = replace(
        _request(tools=ToolUse((tool,), mode="required")),
        params=SamplingParams(temperature=0.0, max_tokens=200, logit_bias=bias),
    )
    deltas = [e for _, e in engine.generate([request]) if isinstance(e, TextDelta)]
    engine.preparer.close()
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert [call.name for call in calls if call.name] == ["look_up"]
    assert json.loads("".join(call.arguments for call in calls)) == {"q": "x"}
    assert deltas[-1].finish_reason == "tool_calls"
    assert not any(delta.text or delta.reasoning for delta in deltas)


def test_what_cannot_be_is_refused(preparer: Preparer, tiny_loaded: LoadedModel) -> None:
    tools = ToolUse((TOOL,), mode="required")
    turns = (USER, ChatMessage("assistant", "It"))
    with pytest.raises(InvalidRequest, match="leave continue_final_message out") as refusal:
        preparer.prepare(_request(messages=turns, tools=tools, continue_final_message=True))
    assert refusal.value.param == "tool_choice"
    mute = templates.HARMONY_LIKE.replace("tools", "things")
    parts = replace(tiny_loaded.tokenizer._parts, chat_template=mute)
    other = Preparer(
        Tokenizer(parts),
        vocab_size=257,
        max_model_len=512,
        eos_token_ids=tiny_loaded.eos_token_ids,
        grammar_timeout_s=20.0,
    )
    with pytest.raises(InvalidRequest, match="has no place for tools") as refusal:
        other.prepare(_request(tools=tools))
    assert refusal.value.param == "tools"
