"""What may be sent and what is refused, before anything is queued."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llm_engine.chat.stream_parser import StreamParser
from llm_engine.errors import ContextLengthExceeded, InvalidRequest
from llm_engine.loader import LoadedModel
from llm_engine.prompt import Preparer
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import (
    ChatMessage,
    Constraint,
    GenerationRequest,
    SamplingParams,
    Tool,
    ToolCall,
    ToolUse,
)

USER = ChatMessage("user", "hi")
TOOLS = ToolUse((Tool("f"),))


@pytest.fixture(scope="module")
def preparer(tiny_loaded: LoadedModel) -> Iterator[Preparer]:
    preparer = _preparer(tiny_loaded)
    yield preparer
    preparer.close()


def _preparer(loaded: LoadedModel, max_model_len: int = 512) -> Preparer:
    return Preparer(
        loaded.tokenizer,
        vocab_size=257,
        max_model_len=max_model_len,
        eos_token_ids=loaded.eos_token_ids,
        grammar_timeout_s=20.0,
    )


@pytest.fixture
def request_of() -> Callable[..., GenerationRequest]:
    def build(*messages: ChatMessage, params: Any = None, **fields: Any) -> GenerationRequest:
        given = {"messages": messages or None, "prompt_token_ids": None, **fields}
        return GenerationRequest("r", params=SamplingParams(**(params or {})), **given)

    return build


def test_three_kinds_of_prompt(preparer: Preparer, request_of) -> None:
    chat = preparer.prepare(request_of(USER))
    assert bytes(chat.prompt_ids) == b"[user]hi[assistant]"
    assert (chat.matcher, chat.parser) == (None, None)
    assert preparer.prepare(request_of(prompt_token_ids=(1, 2))).prompt_ids == (1, 2)
    assert bytes(preparer.prepare(request_of(prompt_text="é")).prompt_ids) == "é".encode()


def test_one_assistant_message_alone_is_served(preparer: Preparer, request_of) -> None:
    prepared = preparer.prepare(request_of(ChatMessage("assistant", "hello")))
    assert bytes(prepared.prompt_ids) == b"[assistant]hello[assistant]"


def test_the_last_message_goes_on(preparer: Preparer, request_of) -> None:
    turns = (USER, ChatMessage("assistant", "Sure: "))
    prepared = preparer.prepare(request_of(*turns, continue_final_message=True))
    assert bytes(prepared.prompt_ids) == b"[user]hi[assistant]Sure: "


def test_tool_turns_reach_a_template_without_tools(preparer: Preparer, request_of) -> None:
    call = ToolCall("call_1", "f", '{"x": 1}')
    turns = (
        USER,
        ChatMessage("assistant", "", tool_calls=(call,)),
        ChatMessage("tool", "42", tool_call_id="call_1"),
    )
    prepared = preparer.prepare(request_of(*turns, tools=TOOLS))
    text = bytes(prepared.prompt_ids).decode()
    assert text.startswith("[system]You may call these functions.")
    assert '[assistant]<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>' in text
    assert "[user]<tool_response>\n42\n</tool_response>[assistant]" in text
    assert prepared.parser is not None
    assert isinstance(prepared.parser(), StreamParser)
    none = ToolUse(TOOLS.tools, mode="none")
    without = preparer.prepare(request_of(*turns, tools=none))
    assert b"You may call" not in bytes(without.prompt_ids)
    assert (without.parser, without.matcher) == (None, None)


def test_every_choice_gets_states_of_its_own(preparer: Preparer, request_of) -> None:
    constraint = Constraint("choice", '["yes", "no"]')
    prepared = preparer.prepare(request_of(USER, constraint=constraint, params={"n": 2}))
    assert prepared.matcher is not None
    one, two = prepared.matcher(), prepared.matcher()
    assert one.accept(ord("y"))
    assert not one.accept(ord("n"))
    assert two.accept(ord("n"))
    tools = preparer.prepare(request_of(USER, tools=TOOLS))
    assert tools.parser is not None
    assert tools.parser() is not tools.parser()


def test_constraints_bind_ready_prompts_too(preparer: Preparer, request_of) -> None:
    constraint = Constraint("regex", "ab+")
    for prompt in ({"prompt_text": "x"}, {"prompt_token_ids": (1,)}):
        prepared = preparer.prepare(request_of(**prompt, constraint=constraint))
        assert prepared.matcher is not None
        assert prepared.matcher().accept(ord("a"))


@pytest.mark.parametrize(
    ("fields", "param", "match"),
    [
        ({"messages": (ChatMessage("bot", "x"),)}, "messages", "must be one of system"),
        ({"prompt_token_ids": (1, 257)}, "prompt_token_ids", "token 257"),
        ({"prompt_token_ids": (-1,)}, "prompt_token_ids", "token -1"),
        ({"prompt_text": ""}, "prompt", "prompt is empty"),
        ({"prompt_text": "x", "tools": TOOLS}, "tools", "tools needs messages"),
        (
            {"prompt_text": "x", "continue_final_message": True},
            "continue_final_message",
            "needs messages",
        ),
        (
            {"messages": (USER,), "continue_final_message": True},
            "continue_final_message",
            "of role 'user'",
        ),
        (
            {"messages": (USER,), "template_options": {"messages": []}},
            "template_options",
            "'messages'",
        ),
        ({"messages": (USER,), "tools": ToolUse(())}, "tools", "0 entries"),
        (
            {"messages": (USER,), "tools": ToolUse((Tool("f"),), name="g")},
            "tools",
            "tool_choice names 'g'",
        ),
        (
            {"messages": (USER,), "constraint": Constraint("json_schema", "{")},
            "response_format",
            "response_format: it is no JSON",
        ),
        (
            {"messages": (USER,), "constraint": Constraint("regex", "(")},
            "structured_outputs",
            "structured_outputs: .*unclosed",
        ),
        ({"prompt_text": "x", "constraint": Constraint("choice", "[]")}, "structured_outputs", "0"),
    ],
)
def test_refused_naming_the_field(
    fields: dict[str, Any], param: str, match: str, preparer: Preparer, request_of
) -> None:
    with pytest.raises(InvalidRequest, match=match) as raised:
        preparer.prepare(request_of(**fields))
    assert raised.value.param == param


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
def test_ids_outside_the_vocabulary(name: str, preparer: Preparer, request_of) -> None:
    value = {300: 1.0} if name == "logit_bias" else (300,)
    with pytest.raises(InvalidRequest, match=f"{name} holds token 300, must lie between 0 and 256"):
        preparer.prepare(request_of(USER, params={name: value}))


def test_a_prompt_over_the_limit_says_both_numbers(tiny_loaded: LoadedModel, request_of) -> None:
    short = _preparer(tiny_loaded, max_model_len=16)
    long_user = ChatMessage("user", "x" * 100)
    for param, fields in (
        ("messages", {"messages": (long_user,)}),
        ("prompt", {"prompt_text": "x" * 117}),
    ):
        with pytest.raises(ContextLengthExceeded, match=r"117 tokens.* 16 tokens") as raised:
            short.prepare(request_of(**fields))
        assert (raised.value.prompt_tokens, raised.value.max_model_len) == (117, 16)
        assert raised.value.param == param
    # Sixteen characters a token and more are not tokenised: the bytes alone say too much.
    for param, fields in (
        ("messages", {"messages": (ChatMessage("user", "x" * 300),)}),
        ("prompt", {"prompt_text": "x" * 317}),
    ):
        with pytest.raises(ContextLengthExceeded, match=r"at least 31[37] tok.* 16 tok") as raised:
            short.prepare(request_of(**fields))
        assert raised.value.param == param
    fits = short.prepare(request_of(prompt_text="x" * 10, params={"max_tokens": 100}))
    assert fits.max_total_tokens == 16
    assert (
        short.prepare(request_of(prompt_text="x", params={"max_tokens": 3})).max_total_tokens == 4
    )


def test_turns_are_told_apart_by_their_salt(tiny_loaded: LoadedModel, request_of) -> None:
    """Who sends another's words must not be answered sooner for it."""
    asked: list[tuple[str, str]] = []

    class Watched(Tokenizer):
        def encode_text(self, text: str, *, salt: str = "") -> list[int]:
            asked.append((text, salt))
            return super().encode_text(text, salt=salt)

    watched = Preparer(
        Watched(tiny_loaded.tokenizer._parts),
        vocab_size=257,
        max_model_len=512,
        eos_token_ids=tiny_loaded.eos_token_ids,
        grammar_timeout_s=20.0,
    )
    watched.prepare(request_of(USER, cache_salt="mine", tenant="one"))
    watched.prepare(request_of(USER, cache_salt="mine", tenant="other"))
    assert [text for text, _ in asked] == ["[user]hi[assistant]"] * 2
    assert asked[0][1] != asked[1][1]
    assert all(salt.endswith("mine") for _, salt in asked)


def test_a_model_without_a_template_says_so(tiny_loaded: LoadedModel, request_of) -> None:
    from dataclasses import replace

    parts = replace(tiny_loaded.tokenizer._parts, chat_template=None)
    plain = Preparer(
        Tokenizer(parts),
        vocab_size=257,
        max_model_len=64,
        eos_token_ids=(256,),
        grammar_timeout_s=5.0,
    )
    with pytest.raises(InvalidRequest, match="no chat template"):
        plain.prepare(request_of(USER))
    assert plain.prepare(request_of(prompt_text="x")).prompt_ids == (ord("x"),)
    assert [decision.chosen for decision in plain.decisions()] == [
        "llguidance",
        "none",
        "kept",
        "bounded by their bytes",
    ]


def test_a_model_without_an_end_cannot_be_bound(tiny_loaded: LoadedModel, request_of) -> None:
    endless = Preparer(
        tiny_loaded.tokenizer,
        vocab_size=257,
        max_model_len=64,
        eos_token_ids=(),
        grammar_timeout_s=5.0,
    )
    with pytest.raises(InvalidRequest, match="no end-of-sequence token"):
        endless.prepare(request_of(USER, constraint=Constraint("json_object")))


def test_the_decisions_say_how_tools_are_told(preparer: Preparer) -> None:
    grammar, chat, *_ = preparer.decisions()
    assert (grammar.kind, grammar.chosen) == ("grammar", "llguidance")
    assert (chat.kind, chat.chosen) == ("chat", "hermes")
    assert "no place for tools" in chat.reasons[0]
    json.dumps([grammar.as_dict(), chat.as_dict()])
