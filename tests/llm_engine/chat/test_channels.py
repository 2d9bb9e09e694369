"""Answers on channels: thoughts, content and calls, the same whatever the pieces."""

import itertools
import logging
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_engine.answers.text import AnswerText, join
from llm_engine.chat.channel_parser import ChannelOutput, ChannelParser
from llm_engine.chat.channels import HARMONY, ChannelStart
from llm_engine.chat.parser import ParsedText
from llm_engine.loader import LoadedModel
from llm_engine.types import SamplingParams, Tool

TOOLS = (Tool("get_weather"), Tool("get-time_2"))
THOUGHT = "<|channel|>analysis<|message|>Łódź? <b> 2 < 3.\n<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>"
ONE = '{"city": "Łódź \\"<x>\\" {", "days": 3}'
Parsed = tuple[str, str, list[tuple[str, str]]]
WRITTEN: dict[str, tuple[str, Parsed]] = {
    "answer": (f"{FINAL}2 + 2 = 4.<|return|>", ("2 + 2 = 4.", "", [])),
    "thought, answer": (f"{THOUGHT}{NEXT}{FINAL}Yes.", ("Yes.", "Łódź? <b> 2 < 3.\n", [])),
    "two thoughts": (
        f"{THOUGHT}{NEXT}<|channel|>analysis<|message|>And<|end|>{NEXT}{FINAL}Yes.",
        ("Yes.", "Łódź? <b> 2 < 3.\n\nAnd", []),
    ),
    "call": (
        f"{THOUGHT}{NEXT}<|channel|>commentary to=functions.get_weather <|constrain|>json"
        f"<|message|>{ONE}<|call|>",
        ("", "Łódź? <b> 2 < 3.\n", [("get_weather", ONE)]),
    ),
    "recipient first": (
        " to=functions.get-time_2<|channel|>commentary json<|message|>{}",
        ("", "", [("get-time_2", "{}")]),
    ),
    "recipient in the role": (
        f"{THOUGHT}<|start|>assistant to=functions.get_weather<|channel|>commentary"
        f"<|constrain|>json<|message|>{ONE}",
        ("", "Łódź? <b> 2 < 3.\n", [("get_weather", ONE)]),
    ),
    "no namespace, in the analysis channel": (
        "<|channel|>analysis to=get_weather code<|message|>{}<|call|>",
        ("", "", [("get_weather", "{}")]),
    ),
    "no arguments": (
        "<|channel|>commentary to=functions.get-time_2<|message|><|call|>",
        ("", "", [("get-time_2", "{}")]),
    ),
    "preamble": (
        f"<|channel|>commentary<|message|>**Plan**<|end|>{NEXT}<|channel|>commentary"
        f" to=functions.get_weather<|message|>{ONE}<|call|>",
        ("**Plan**", "", [("get_weather", ONE)]),
    ),
    "preamble, answer": (
        f"<|channel|>commentary<|message|>Wait<|end|>\n{NEXT}{FINAL}Done",
        ("Wait\nDone", "", []),
    ),
    "two calls": (
        "<|channel|>commentary to=functions.get_weather<|message|>{}<|call|><|start|>assistant"
        "<|channel|>commentary to=functions.get-time_2<|message|>{}<|call|>",
        ("", "", [("get_weather", "{}"), ("get-time_2", "{}")]),
    ),
    "a message without an end": (
        f"<|channel|>analysis<|message|>Hm<|channel|>final<|message|>Yes{NEXT}{FINAL}No",
        ("Yes\nNo", "Hm", []),
    ),
    "no channel at all": ("Just text < with > 2.", ("Just text < with > 2.", "", [])),
    "almost a header": ("  to be, or", ("  to be, or", "", [])),
    "text behind a message": (f"{THOUGHT} Well", ("Well", "Łódź? <b> 2 < 3.\n", [])),
    "almost a marker": (f"{FINAL}<|en <|en", ("<|en <|en", "", [])),
    "a header cut short": (f"{THOUGHT}{NEXT}<|channel|>fin", ("", "Łódź? <b> 2 < 3.\n", [])),
    "an unknown channel": ("<|channel|>aside<|message|>Psst", ("Psst", "", [])),
    "a tool not on offer": (
        "<|channel|>commentary to=functions.other <|constrain|>json<|message|>{}<|call|>",
        ("{}", "", []),
    ),
    "a tool of its own": (
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>",
        ("", "1 + 1", []),
    ),
    "nothing": ("", ("", "", [])),
    "a header that never ends": ("<|channel|>" + "x" * 300, ("<|channel|>" + "x" * 300, "", [])),
    "constrained answer": ("<|channel|>final <|constrain|>json<|message|>[1]", ("[1]", "", [])),
}


def parsed(
    pieces: Any,
    start: ChannelStart = "header",
    tools: tuple[Tool, ...] = TOOLS,
    *,
    is_cut: bool = False,
) -> Parsed:
    """Content, reasoning and calls of a text given in pieces."""
    ids = itertools.count()
    parser = ChannelParser(ChannelOutput(HARMONY, start, tools), lambda: f"call_{next(ids)}")
    parts = [*(parser.push(piece) for piece in pieces), parser.flush(is_cut=is_cut)]
    assert parser.flush() == ParsedText()
    calls = _calls(parts)
    assert parser.num_tool_calls == len(calls)
    content = "".join(part.content for part in parts)
    return content, "".join(part.reasoning for part in parts), calls


def _calls(parts: Any) -> list[tuple[str, str]]:
    calls: list[list[str]] = []
    for delta in (delta for part in parts for delta in part.tool_calls):
        if delta.id is not None:
            assert (delta.index, delta.id) == (len(calls), f"call_{len(calls)}")
            calls.append([delta.name, ""])
        assert delta.index == len(calls) - 1
        calls[-1][1] += delta.arguments
    return [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_read(name: str) -> None:
    text, expected = WRITTEN[name]
    assert parsed([text]) == expected
    assert parsed(text) == expected


def test_a_message_that_is_cut_shows_no_marker_and_no_arguments_that_never_came() -> None:
    call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    assert parsed(call, is_cut=True) == ("", "", [("get_weather", "")])
    assert parsed(call) == ("", "", [("get_weather", "{}")])
    assert parsed(call + '{"city": "Os', is_cut=True) == ("", "", [("get_weather", '{"city": "Os')])
    assert parsed(f"{FINAL}Well<|en", is_cut=True) == ("Well", "", [])
    assert parsed(f"{FINAL}a <", is_cut=True) == ("a <", "", [])
    assert parsed(f"{THOUGHT}<|sta", is_cut=True) == ("", "Łódź? <b> 2 < 3.\n", [])


def test_a_continued_message_is_the_answer() -> None:
    text = f" and more.<|end|>{NEXT}<|channel|>analysis<|message|>Hm"
    assert parsed(text, "final") == (" and more.", "Hm", [])
    assert parsed(f"so{text}", "analysis") == ("", "so and more.\nHm", [])


_FRAGMENTS = [
    *HARMONY.texts, "assistant", "analysis", "final", "commentary", " to=functions.get_weather ",
    "to=", "json", "{}", " ", "\n", "<|", "<", "|>", "é", "text", "x" * 130,
]  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(_FRAGMENTS), max_size=14), st.data())
@example(["<|channel|>", "x" * 130, "x" * 130, "<|message|>"], None)
def test_pieces_do_not_matter(fragments: list[str], data: Any) -> None:
    """Fragments in any order, cut anywhere: nothing but the whole text decides."""
    text = "".join(fragments)
    whole = parsed([text])
    assert parsed(text) == whole
    if data is not None and len(text) > 1:
        cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=6)))
        assert parsed(text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])) == whole
    for part in whole[:2]:  # in the order of the text, but for line breaks between messages
        rest = iter(text)
        assert all(char in rest for char in part if char != "\n")


_SAID = st.text("ab<|>é\n {}", max_size=12)
_MESSAGES = st.lists(st.tuples(st.sampled_from(["thought", "note", "final", "call"]), _SAID))


@settings(deadline=None, max_examples=150)
@given(_MESSAGES, st.integers(1, 9))
def test_messages_come_out_as_they_went_in(messages: list[tuple[str, str]], size: int) -> None:
    headers = {
        "thought": HARMONY.begin("analysis"),
        "note": HARMONY.begin("commentary"),
        "final": HARMONY.begin("final"),
        "call": HARMONY.begin_call("get_weather"),
    }
    written = NEXT.join(f"{headers[kind]}{said}<|end|>" for kind, said in messages)
    said = {kind: [text for of, text in messages if of == kind] for kind in headers}
    content = [text for of, text in messages if of in ("note", "final") and text]
    calls = [("get_weather", text or "{}") for text in said["call"]]
    expected = ("\n".join(content), "\n".join(filter(None, said["thought"])), calls)
    assert parsed(written[i : i + size] for i in range(0, len(written), size)) == expected


@pytest.mark.parametrize("name", ["call", "two thoughts", "no channel at all"])
def test_any_byte_may_end_a_piece(tiny_loaded: LoadedModel, name: str) -> None:
    """Through the detokenizer, one byte a token, as the engine reads an answer."""
    text, expected = WRITTEN[name]
    ids = itertools.count()
    form = ChannelOutput(HARMONY, "header", TOOLS)
    parser = ChannelParser(form, lambda: f"call_{next(ids)}")
    answer = AnswerText(tiny_loaded.tokenizer, SamplingParams(), parser)
    pieces = [answer.push(byte, may_stop=True) for byte in text.encode()]
    whole = join([*pieces, answer.finish()])
    assert (whole.content, whole.reasoning, _calls([whole])) == expected
    assert (answer.num_reasoning_tokens > 0) is bool(expected[1])


def test_text_is_handed_on_as_it_grows() -> None:
    parser = ChannelParser(ChannelOutput(HARMONY, tools=TOOLS))
    assert parser.push("<|channel|>analysis<|message|>A").reasoning == "A"
    assert parser.push("b <|en").reasoning == "b "
    assert parser.push("x").reasoning == "<|enx"
    call = parser.push("<|end|><|start|>assistant to=functions.get_weather<|message|>{").tool_calls
    assert [(delta.name, delta.arguments) for delta in call] == [("get_weather", "{")]
    assert parser.push('"a').tool_calls[0].arguments == '"a'


def test_what_is_out_of_form_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    parsed([WRITTEN["a tool not on offer"][0]])
    parsed([WRITTEN["a header that never ends"][0]])
    assert "'functions.other', which is no tool on offer" in caplog.text
    assert "no proper header" in caplog.text


def test_special_tokens_are_asked_for_where_a_marker_is_one() -> None:
    form = ChannelOutput(HARMONY)
    assert form.shown_with(["<eos>", "<|channel|>"]).needs_special_tokens
    assert not form.shown_with(["<eos>"]).needs_special_tokens
