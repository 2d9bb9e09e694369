"""Reasoning and tool calls in every family's form; the same whatever the pieces."""

import itertools
import json
import logging

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_engine.chat import formats
from llm_engine.chat.families import ReasoningMarkers
from llm_engine.chat.parser import ParsedText
from llm_engine.chat.stream_parser import OutputFormat, StreamParser
from llm_engine.types import Tool

THINK = ReasoningMarkers("<think>", "</think>")
WEATHER = Tool(
    "get_weather",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        }
    ),
)
CLOCK = Tool("get_time")
TOOLS = (WEATHER, CLOCK)
Calls = list[tuple[str, str]]


def form(calls=None, start="off", tools=TOOLS):
    return OutputFormat(THINK, start, calls, tools if calls is not None else ())


def parsed(pieces, output_format, *, is_cut=False) -> tuple[str, str, Calls]:
    """Content, reasoning and calls of a text given in pieces."""
    ids = itertools.count()
    parser = StreamParser(output_format, lambda: f"call_{next(ids)}")
    parts = [*(parser.push(piece) for piece in pieces), parser.flush(is_cut=is_cut)]
    assert parser.flush() == ParsedText()
    calls: list[list[str]] = []
    for delta in (delta for part in parts for delta in part.tool_calls):
        if delta.id is not None:
            assert delta.index == len(calls)
            assert delta.id == f"call_{delta.index}"
            assert delta.name is not None
            calls.append([delta.name, ""])
        assert delta.index == len(calls) - 1
        calls[-1][1] += delta.arguments
    assert parser.num_tool_calls == len(calls)
    content = "".join(part.content for part in parts)
    reasoning = "".join(part.reasoning for part in parts)
    return content, reasoning, [(name, arguments) for name, arguments in calls]


ONE = '{"city": "Łódź \\"<x>\\" {", "days": 3}'
TWO = '{"city":"Oslo"}'
HERMES_CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ONE}}}\n</tool_call>'
WRITTEN = [
    (formats.HERMES, HERMES_CALL, [("get_weather", ONE)]),
    (
        formats.HERMES,
        HERMES_CALL + '\n<tool_call>{"name":"get_time","arguments":{}}</tool_call>\n',
        [("get_weather", ONE), ("get_time", "{}")],
    ),
    (
        formats.HERMES,
        f'<tool_call>{{"arguments": {TWO}, "name": "get_weather"}}</tool_call>',
        [("get_weather", '{"city": "Oslo"}')],
    ),
    (formats.HERMES, '<tool_call>{"name": "get_time"}</tool_call>', [("get_time", "{}")]),
    (
        formats.QWEN3_CODER,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nSão\n</Paulo>\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", '{"city": "São\\n</Paulo>", "days": 3}')],
    ),
    (
        formats.QWEN3_CODER,
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        [("get_time", "{}")],
    ),
    (
        formats.GLM,
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        [("get_weather", '{"city": "Oslo", "days": 2}')],
    ),
    (formats.GLM, "<tool_call>get_time\n</tool_call>", [("get_time", "{}")]),
    (formats.LLAMA3, f'{{"name": "get_weather", "parameters": {ONE}}}', [("get_weather", ONE)]),
    (
        formats.LLAMA3,
        f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {TWO}}}; '
        '{"name": "get_time", "parameters": {}}',
        [("get_weather", TWO), ("get_time", "{}")],
    ),
    (
        formats.MISTRAL,
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {ONE}, "id": "abcdefghi"}}, '
        '{"name": "get_time", "arguments": {}}]',
        [("get_weather", ONE), ("get_time", "{}")],
    ),
    (
        formats.MISTRAL_ARGS,
        f"[TOOL_CALLS]get_weather[ARGS]{ONE}[TOOL_CALLS]get_time[ARGS]{{}}",
        [("get_weather", ONE), ("get_time", "{}")],
    ),
    (
        formats.DEEPSEEK_V3,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{ONE}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("get_weather", ONE), ("get_time", "{}")],
    ),
    (
        formats.DEEPSEEK_V31,
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ONE}"
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        [("get_weather", ONE), ("get_time", "{}")],
    ),
]
NAMES = [f"{form.name}-{i}" for i, (form, _, _) in enumerate(WRITTEN)]


@pytest.mark.parametrize(("calls", "text", "expected"), WRITTEN, ids=NAMES)
def test_calls_of_every_family(calls, text, expected) -> None:
    assert parsed([text], form(calls)) == ("", "", expected)
    assert parsed(list(text), form(calls)) == ("", "", expected)
    assert all(json.loads(arguments) is not None for _, arguments in expected)


@pytest.mark.parametrize(("calls", "text", "expected"), WRITTEN, ids=NAMES)
def test_text_before_and_after_a_call_is_delivered(calls, text, expected) -> None:
    if not calls.leads:
        content, _, found = parsed(list(f"Let me look.\n{text.strip()}\n and so on"), form(calls))
        assert (content, found) == ("Let me look.\n\n and so on", expected)
    thought = f"<think>\nHmm, <tool_call>?\n</think>\n\n{text}"
    found = parsed(list(thought), form(calls, "possible"))
    assert found == ("", "Hmm, <tool_call>?", expected)


@pytest.mark.parametrize(("calls", "text", "expected"), WRITTEN, ids=NAMES)
def test_a_call_cut_anywhere_loses_nothing(calls, text, expected) -> None:
    for cut in range(len(text)):
        content, _, found = parsed([text[:cut]], form(calls))
        assert len(found) <= len(expected)
        assert [name for name, _ in found] == [name for name, _ in expected[: len(found)]]
        if not found:
            assert content == text[:cut]


@pytest.mark.parametrize(("calls", "text", "expected"), WRITTEN, ids=NAMES)
def test_an_answer_cut_in_a_call_shows_no_markup(calls, text, expected) -> None:
    """Names in order, arguments as far as they came, and no character of markup as content."""
    lead = "" if calls.leads else "Let me look.\n"
    num_named = 0
    for cut in range(len(text)):
        pieces = [lead + text[:cut]]
        content, _, found = parsed(pieces, form(calls), is_cut=True)
        assert parsed(list(pieces[0]), form(calls), is_cut=True) == (content, "", found)
        names = [name for name, _ in found]
        assert names == [name for name, _ in expected[: len(found)]]
        assert num_named <= len(found)
        num_named = len(found)
        for (_, arguments), (_, whole) in zip(found, expected, strict=False):
            assert whole.replace(" ", "").startswith(arguments.replace(" ", ""))
        if not found and not calls.leads and cut >= 4:
            assert content == lead
        if found:
            assert content.strip() == lead.strip()
    assert num_named == len(expected) or calls is formats.HERMES  # keys in another order


def test_what_only_looks_like_the_beginning_of_a_call_is_kept_when_cut() -> None:
    for text in ("a <", "a <t", "a <to", "[TO", "a <table", "<tool_call>is how it begins"):
        assert parsed([text], form(formats.HERMES), is_cut=True) == (text, "", [])
    for text in ('{"na', '{"name": "', '{"name": "Bob', '{"name": "Bob", "age": 4', '{"a": [1'):
        assert parsed([text], form(formats.LLAMA3), is_cut=True) == (text, "", [])
    assert parsed(['{"name": "get_w'], form(formats.LLAMA3), is_cut=True) == ("", "", [])
    assert parsed(["a <tool_"], form(formats.HERMES)) == ("a <tool_", "", [])


def test_a_name_that_is_whole_is_a_call_without_arguments_yet() -> None:
    for calls, text in (
        (formats.HERMES, '<tool_call>{"name": "get_time", "argu'),
        (formats.GLM, "<tool_call>get_time\n"),
        (formats.LLAMA3, '{"name": "get_time", '),
        (formats.MISTRAL_ARGS, "[TOOL_CALLS]get_time[AR"),
    ):
        assert parsed([text], form(calls), is_cut=True) == ("", "", [("get_time", "")])
    assert parsed(["<tool_call>get_time"], form(formats.GLM), is_cut=True) == ("", "", [])


def test_reasoning_markers_that_are_cut_are_no_text() -> None:
    assert parsed(["Why?\n</thi"], form(start="open"), is_cut=True) == ("", "Why?", [])
    assert parsed(["<thin"], form(start="possible"), is_cut=True) == ("", "", [])
    assert parsed(["a <"], form(start="open"), is_cut=True) == ("", "a <", [])


STARTS = ("open", "possible", "off")
BITS = st.sampled_from(
    [
        *' \n{}[],:;"<>\\ab7',
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "</tool",
        '{"name": "get_time", "arguments": ',
        '{"name": "nobody", "arguments": ',
        '"parameters": {}',
        "[TOOL_CALLS]",
        "[ARGS]",
        "get_time",
        "<function=get_weather>",
        "<parameter=city>",
        "</parameter>",
        "</function>",
        "<arg_key>city</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<|python_tag|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "```json\n",
        "\n```",
        "é🙂",
    ]
)
FORMATS = (
    formats.HERMES,
    formats.QWEN3_CODER,
    formats.GLM,
    formats.LLAMA3,
    formats.MISTRAL,
    formats.MISTRAL_ARGS,
    formats.DEEPSEEK_V3,
    formats.DEEPSEEK_V31,
    None,
)


@settings(max_examples=400, deadline=None)
@given(
    calls=st.sampled_from(FORMATS),
    start=st.sampled_from(STARTS),
    bits=st.lists(BITS, max_size=14),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
@example(calls=formats.HERMES, start="off", bits=list(HERMES_CALL), cuts=[3, 30, 70])
@example(calls=formats.HERMES, start="off", bits=["\n", "<tool_call>", "x"], cuts=[1])
@example(calls=formats.LLAMA3, start="off", bits=["{", "a"], cuts=[1])
def test_the_pieces_do_not_matter(calls, start, bits, cuts) -> None:
    text = "".join(bits)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    whole = parsed([text], form(calls, start))
    assert parsed(pieces, form(calls, start)) == whole
    assert parsed(list(text), form(calls, start)) == whole


@settings(max_examples=200, deadline=None)
@given(bits=st.lists(BITS, max_size=10), tail=st.text(min_size=1, max_size=3))
def test_no_more_is_held_than_could_become_a_marker(bits, tail) -> None:
    """Text without any marker's first character is out at once."""
    parser = StreamParser(form(formats.HERMES))
    text = "".join(bits).replace("<", "(")
    shown = parser.push("x" + text).content
    assert shown == "x" + text
    assert parser.push("a <tool").content == "a "
    assert parser.push("s").content == "<tools"
    assert parser.push(tail.replace("<", "(")).content == tail.replace("<", "(")


def test_arguments_are_streamed_as_they_come() -> None:
    parser = StreamParser(form(formats.HERMES))
    parser.push('<tool_call>\n{"name": "get_weather", "arguments": {"city": "')
    assert [d.arguments for d in parser.push("Os").tool_calls] == ["Os"]
    assert [d.arguments for d in parser.push('lo"}').tool_calls] == ['lo"}']
    xml = StreamParser(form(formats.QWEN3_CODER))
    xml.push("<tool_call>\n<function=get_weather>\n<parameter=city>\n")
    assert [d.arguments for d in xml.push("Os").tool_calls] == ["Os"]


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (formats.HERMES, '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>'),
        (formats.HERMES, "<tool_call>not JSON</tool_call> and more"),
        (formats.HERMES, '<tool_call>{"name": "get_time", "arguments": '),
        (formats.GLM, "<tool_call>nobody\n</tool_call>"),
        (formats.QWEN3_CODER, "<tool_call><function=nobody></function></tool_call>"),
        (formats.LLAMA3, '{"name": "nobody", "parameters": {}}'),
        (formats.LLAMA3, '{"a": 1}'),
        (formats.MISTRAL, '[TOOL_CALLS][{"name": "nobody", "arguments": {}}]'),
        (formats.DEEPSEEK_V31, "<｜tool▁calls▁begin｜>x<｜tool▁calls▁end｜>"),
    ],
)
def test_what_is_no_call_is_content_and_says_so(calls, text, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        assert parsed(list(text), form(calls)) == (text, "", [])
    assert "delivered as content" in caplog.text


def test_reasoning_is_split_off() -> None:
    text = "<think>\nWhy?\n\nBecause.\n</think>\n\n  42"
    assert parsed(list(text), form(start="possible")) == ("42", "Why?\n\nBecause.", [])
    assert parsed(["Why?</think>42"], form(start="open")) == ("42", "Why?", [])
    assert parsed(["Why? and no end"], form(start="open")) == ("", "Why? and no end", [])
    assert parsed([" 42 <think>no</think>"], form(start="possible")) == (
        " 42 <think>no</think>",
        "",
        [],
    )
    assert parsed(["<think>x</think>42"], form(start="off")) == ("<think>x</think>42", "", [])
    assert parsed(["<thi"], form(start="possible")) == ("<thi", "", [])


def test_without_tools_their_marks_are_text() -> None:
    text = '<tool_call>{"name": "get_time"}</tool_call>'
    assert parsed(list(text), form(formats.HERMES, tools=())) == (text, "", [])
