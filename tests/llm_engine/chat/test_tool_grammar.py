"""Answers that the grammar allows are read by the parser as calls that fit their schemas."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from llm_engine.chat import formats
from llm_engine.chat.families import ReasoningMarkers
from llm_engine.chat.formats import CallFormat
from llm_engine.chat.reasoning_grammar import ReasoningPrefix
from llm_engine.chat.stream_parser import OutputFormat, ReasoningStart, StreamParser
from llm_engine.chat.tool_grammar import call_grammar, check_tools
from llm_engine.structured.bounds import OutOfBounds
from llm_engine.structured.compiler import GrammarCompiler
from llm_engine.structured.grammar import grammar_of
from llm_engine.structured.matcher import num_words
from llm_engine.structured.vocabulary import Vocabulary
from llm_engine.types import Constraint, Tool, ToolUse
from llm_engine.weights.gguf_tokenizer import byte_level_alphabet

THINK = ReasoningMarkers("<think>", "</think>")
MARKS = [
    "<eos>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", 'the "x" {<'], "maxLength": 12},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "near": {"$ref": "#/$defs/place"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (
    Tool("get_weather", parameters=json.dumps(SCHEMA)),
    Tool("get_time", parameters=json.dumps(EMPTY)),
)
STRICT = tuple(Tool(tool.name, parameters=tool.parameters, strict=True) for tool in TOOLS)
BY_NAME = {"get_weather": SCHEMA, "get_time": EMPTY}
FORMATS = [
    formats.HERMES,
    formats.QWEN3_CODER,
    formats.GLM,
    formats.LLAMA3,
    formats.MISTRAL,
    formats.MISTRAL_ARGS,
    formats.DEEPSEEK_V3,
    formats.DEEPSEEK_V31,
]


class World:
    """A byte tokenizer whose marks are tokens of their own, or are spelled."""

    def __init__(self, *, has_marks: bool) -> None:
        backend = Tokenizer(models.BPE(vocab=dict(byte_level_alphabet()), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        marks = MARKS if has_marks else MARKS[:1]
        backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
        self.backend = backend
        self.size = backend.get_vocab_size()
        self.vocabulary = Vocabulary(backend, self.size, (256,))
        self.compiler = GrammarCompiler(self.vocabulary, timeout_s=30.0)

    def prefix(self, start: ReasoningStart) -> ReasoningPrefix:
        return ReasoningPrefix(self.vocabulary, THINK, start)

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def write(self, grammar, seed: int, begin: str = "", max_tokens: int = 500) -> str | None:
        """An answer of random allowed tokens after a beginning; None if it did not end."""
        matcher = self.compiler.compile(grammar).matcher()
        rng, written = random.Random(seed), self.encode(begin)
        for token_id in written:
            assert matcher.accept(token_id), (begin, self.backend.decode([token_id]))
        row = torch.zeros(num_words(self.size), dtype=torch.int32)
        while len(written) < max_tokens and not matcher.is_finished:
            matcher.fill(row)
            bits = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[: self.size]
            ids = [int(i) for i in np.flatnonzero(bits)]
            if 256 in ids:
                break
            closing = [i for i in ids if i > 256 or i in b'"]}<']
            pick = rng.choice(closing if closing and rng.random() < 0.5 else ids)
            assert matcher.accept(pick)
            written.append(pick)
        else:
            if not matcher.is_finished:
                return None
        return self.backend.decode(written, skip_special_tokens=False)

    def takes(self, grammar, text: str) -> bool:
        """Whether a text may be written in full and may end there."""
        matcher = self.compiler.compile(grammar).matcher()
        ids = self.encode(text)
        return all(matcher.accept(token_id) for token_id in ids) and matcher.accept(256)


@pytest.fixture(scope="module", params=[True, False], ids=["tokens", "spelled"])
def world(request: pytest.FixtureRequest) -> World:
    return World(has_marks=request.param)


def read(text: str, calls: CallFormat, start: ReasoningStart, tools=TOOLS):
    parser = StreamParser(OutputFormat(THINK, start, calls, tools))
    parts = [*(parser.push(char) for char in text), parser.flush()]
    names: list[str] = []
    arguments: list[str] = []
    for delta in (delta for part in parts for delta in part.tool_calls):
        if delta.name is not None:
            names.append(delta.name)
            arguments.append("")
        arguments[-1] += delta.arguments
    return "".join(part.content for part in parts), list(zip(names, arguments, strict=True))


def check(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), BY_NAME[name])


@pytest.mark.parametrize("start", ["off", "open", "possible"])
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_required_calls_are_read_and_fit(form, start, world: World) -> None:
    use = ToolUse(TOOLS, mode="required")
    grammar = call_grammar(form, check_tools(use), use, world.prefix(start))
    begin = {"off": "", "open": "hm, <b> </think>\n\n", "possible": "<think>hm</think>"}[start]
    texts = [world.write(grammar, seed, begin) for seed in range(6)]
    ended = [text for text in texts if text is not None]
    assert ended
    for text in ended:
        content, calls = read(text, form, start)
        assert content == ""
        assert calls
        check(calls)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_named_call_is_that_one_and_alone(form, world: World) -> None:
    use = ToolUse(TOOLS, name="get_weather")
    grammar = call_grammar(form, check_tools(use), use, world.prefix("off"))
    for seed in range(3):
        text = world.write(grammar, seed)
        if text is not None:
            content, calls = read(text, form, "off")
            assert (content, [name for name, _ in calls]) == ("", ["get_weather"])
            check(calls)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_several_calls_only_where_they_are_allowed(form, world: World) -> None:
    one = form.begin.replace("NAME", "get_time") + ("{}" if form.style == "json" else "")
    one += form.finish
    two = form.section_begin + one + form.separator + one + form.section_end
    for parallel in (True, False):
        use = ToolUse(TOOLS, mode="required", parallel=parallel)
        grammar = call_grammar(form, check_tools(use), use, world.prefix("off"))
        assert world.takes(grammar, form.section_begin + one + form.section_end)
        assert world.takes(grammar, two) is parallel
    assert read(two, form, "off") == ("", [("get_time", "{}")] * 2)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_strict_tools_bind_a_call_from_where_it_begins(form, world: World) -> None:
    use = ToolUse(STRICT, mode="auto")
    grammar = call_grammar(form, check_tools(use), use, world.prefix("off"))
    assert world.takes(grammar, "Just text, {really} <b>.")
    opener = form.begin if form.leads else form.section_begin or form.openers[0]
    begin = opener.split("NAME")[0] if form.leads else "Wait. " + opener
    texts = [world.write(grammar, seed, begin) for seed in range(6)]
    ended = [text for text in texts if text is not None]
    assert ended
    for text in ended:
        content, calls = read(text, form, "off", STRICT)
        assert content == ("" if form.leads else "Wait. ")
        assert calls
        check(calls)
    thoughtful = call_grammar(form, check_tools(use), use, world.prefix("open"))
    assert world.takes(thoughtful, "hm</think>\n\nJust text.")
    assert not world.takes(thoughtful, "no end of it")


def test_nothing_binds_a_free_choice() -> None:
    use = ToolUse(TOOLS)
    prefix = ReasoningPrefix(Vocabulary(None, 1, (0,)), None, "off")  # type: ignore[arg-type]
    assert call_grammar(formats.HERMES, check_tools(use), use, prefix) is None


def test_a_constraint_beside_tools_is_an_alternative(world: World) -> None:
    answer = grammar_of(Constraint("choice", '["yes", "no"]'))
    use = ToolUse(TOOLS)
    grammar = call_grammar(formats.HERMES, check_tools(use), use, world.prefix("possible"), answer)
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    for lead in ("", "<think>x</think>\n\n"):
        assert world.takes(grammar, lead + "yes")
        assert world.takes(grammar, lead + call)
        assert not world.takes(grammar, lead + "maybe")


def test_a_constraint_begins_behind_the_reasoning(world: World) -> None:
    answer = grammar_of(Constraint("json_schema", '{"type": "integer"}', strict=True))
    opened = world.prefix("open").before(answer)
    assert world.takes(opened, "any {words}\nat all</think>\n\n42")
    assert world.takes(opened, "</think>42")
    assert not world.takes(opened, "</think>\n\nfortytwo")
    assert not world.takes(opened, "42")
    possible = world.prefix("possible").before(answer)
    assert world.takes(possible, "42")
    assert world.takes(possible, "<think>x</think>\n42")
    assert world.prefix("off").before(answer) is answer


@pytest.mark.parametrize(
    ("use", "match"),
    [
        (ToolUse(()), "tools has 0 entries"),
        (ToolUse((Tool("a"), Tool("a"))), r"tools\[1\] has the name 'a'"),
        (ToolUse((Tool("a"),), name="b"), "tool_choice names 'b', but tools has a"),
        (ToolUse((Tool("a", parameters="{"),)), r"tools\[0\].function.parameters: it is no JSON"),
        (ToolUse((Tool("a", parameters="[]"),)), "a schema is a JSON object"),
        (ToolUse((Tool("a", parameters='{"type": "array"}'),)), "must be an object's"),
        (ToolUse((Tool("a", parameters='{"x": 1}', strict=True),)), "unknown keyword 'x'"),
        (ToolUse(tuple(Tool(f"t{i}") for i in range(200))), "tools has 200 entries"),
    ],
)
def test_tools_that_cannot_be_offered(use: ToolUse, match: str) -> None:
    with pytest.raises(OutOfBounds, match=match):
        check_tools(use)
