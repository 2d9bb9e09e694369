"""What a grammar lets a model write on channels is what the parser reads, and fits the schemas."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from llm_engine.chat.channel_grammar import ChannelGrammar
from llm_engine.chat.channel_parser import ChannelOutput, ChannelParser
from llm_engine.chat.channels import HARMONY, ChannelStart
from llm_engine.chat.tool_grammar import check_tools
from llm_engine.structured.bounds import OutOfBounds
from llm_engine.structured.compiler import GrammarCompiler
from llm_engine.structured.grammar import Grammar, grammar_of
from llm_engine.structured.matcher import num_words
from llm_engine.structured.vocabulary import Vocabulary
from llm_engine.types import Constraint, Tool, ToolUse
from llm_engine.weights.gguf_tokenizer import byte_level_alphabet

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", 'the "x" {<'], "maxLength": 12},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
BY_NAME = {"get_weather": SCHEMA, "get_time": EMPTY}
TOOLS = tuple(Tool(name, parameters=json.dumps(schema)) for name, schema in BY_NAME.items())
STRICT = tuple(Tool(tool.name, parameters=tool.parameters, strict=True) for tool in TOOLS)
YES = grammar_of(Constraint("choice", '["yes", "no"]'))
THOUGHT = "<|channel|>analysis<|message|>hm, <b>{<|end|><|start|>assistant"
NOTE = "<|channel|>commentary<|message|>soon<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}"
FINAL = "<|channel|>final<|message|>"


class World:
    """A byte tokenizer whose markers are tokens of their own, two of them ends, or are spelled."""

    def __init__(self, *, has_marks: bool) -> None:
        backend = Tokenizer(models.BPE(vocab=dict(byte_level_alphabet()), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        marks = ["<eos>", "<|return|>", "<|call|>"]
        marks += [text for text in HARMONY.texts if text not in marks] if has_marks else []
        marks = marks if has_marks else marks[:1]
        backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
        self.backend = backend
        self.size = backend.get_vocab_size()
        self.ends = (256, 257, 258) if has_marks else (256,)
        self.vocabulary = Vocabulary(backend, self.size, self.ends)
        self.compiler = GrammarCompiler(self.vocabulary, timeout_s=30.0)

    def rules(self, start: ChannelStart = "header") -> ChannelGrammar:
        return ChannelGrammar(HARMONY, self.vocabulary, start)

    def takes(self, grammar: Grammar | None, text: str) -> bool:
        """Whether a text may be written in full and may end there."""
        assert grammar is not None
        matcher = self.compiler.compile(grammar).matcher()
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return all(matcher.accept(token_id) for token_id in ids) and matcher.accept(self.ends[-1])

    def write(self, grammar: Grammar, begin: str, seed: int) -> str | None:
        """An answer of random allowed tokens behind a beginning; None if it did not end."""
        matcher = self.compiler.compile(grammar).matcher()
        rng, written = random.Random(seed), self.backend.encode(begin).ids
        assert all(matcher.accept(token_id) for token_id in written)
        row = torch.zeros(num_words(self.size), dtype=torch.int32)
        while len(written) < 400:
            if matcher.is_finished:
                return self.backend.decode(written, skip_special_tokens=False)
            matcher.fill(row)
            bits = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[: self.size]
            ids = [int(i) for i in np.flatnonzero(bits)]
            if not set(self.ends).isdisjoint(ids):
                return self.backend.decode(written, skip_special_tokens=False)
            closing = [i for i in ids if i > 256 or i in b'"]}<']
            pick = rng.choice(closing if closing and rng.random() < 0.5 else ids)
            assert matcher.accept(pick)
            written.append(pick)
        return None


@pytest.fixture(scope="module", params=[True, False], ids=["tokens", "spelled"])
def world(request: pytest.FixtureRequest) -> World:
    return World(has_marks=request.param)


def read(text: str, start: ChannelStart, tools=TOOLS) -> tuple[str, list[tuple[str, str]]]:
    parser = ChannelParser(ChannelOutput(HARMONY, start, tools))
    calls: list[list[str]] = []
    parts = [*(parser.push(char) for char in text), parser.flush()]
    for delta in (delta for part in parts for delta in part.tool_calls):
        if delta.name is not None:
            calls.append([delta.name, ""])
        calls[-1][1] += delta.arguments
    return "".join(part.content for part in parts), [(name, args) for name, args in calls]


@pytest.mark.parametrize("begin", ["header", "thought", "open"])
@pytest.mark.parametrize(
    "use", [ToolUse(TOOLS, mode="required"), ToolUse(TOOLS, name="get_weather")], ids=repr
)
def test_a_forced_call_is_read_and_fits(world: World, begin: str, use: ToolUse) -> None:
    start: ChannelStart = "analysis" if begin == "open" else "header"
    grammar = world.rules(start).of_calls(check_tools(use), use, None)
    assert grammar is not None
    text = {"header": "", "thought": THOUGHT, "open": "hm<|end|><|start|>assistant"}[begin]
    ended = [
        answer
        for seed in range(4)
        if (answer := world.write(grammar, text + CALL.partition("get_")[0], seed))
    ]
    assert ended
    for answer in ended:
        content, calls = read(answer, start)
        assert content == ""
        ((name, arguments),) = calls
        assert use.name in (None, name)
        jsonschema.validate(json.loads(arguments), BY_NAME[name])
    assert not world.takes(grammar, f"{text}{FINAL}No.")
    assert not world.takes(grammar, f"{text}{NOTE}{CALL}")
    assert not world.takes(grammar, text)


def test_one_call_ends_the_turn(world: World) -> None:
    use = ToolUse(TOOLS, mode="required")
    grammar = world.rules().of_calls(check_tools(use), use, None)
    assert world.takes(grammar, THOUGHT + THOUGHT + CALL)
    assert not world.takes(grammar, f"{CALL}<|call|><|start|>assistant{CALL}")


def test_strict_tools_bind_a_free_choice(world: World) -> None:
    use = ToolUse(STRICT)
    grammar = world.rules().of_calls(check_tools(use), use, None)
    for lead in ("", THOUGHT, NOTE, THOUGHT + NOTE + THOUGHT):
        assert world.takes(grammar, f"{lead}{FINAL}Any {{text}}.")
        assert world.takes(grammar, lead + CALL)
        assert not world.takes(grammar, lead + CALL.replace("{}", '{"x": 1}'))
        assert not world.takes(grammar, lead + CALL.replace("get_time", "other"))
    assert not world.takes(grammar, "Any text.")


def test_nothing_binds_a_free_choice_of_plain_tools(world: World) -> None:
    use = ToolUse(TOOLS)
    assert world.rules().of_calls(check_tools(use), use, None) is None


def test_a_constraint_binds_the_final_channel(world: World) -> None:
    rules = world.rules().before(YES)
    assert world.takes(rules, f"{FINAL}yes")
    assert world.takes(rules, f"{THOUGHT}{THOUGHT}{FINAL}no")
    assert not world.takes(rules, f"{FINAL}maybe")
    assert not world.takes(rules, f"{NOTE}{FINAL}yes")
    assert not world.takes(rules, "yes")
    assert world.takes(world.rules("analysis").before(YES), f"x<|end|><|start|>assistant{FINAL}no")
    assert world.rules("final").before(YES) is YES


def test_a_constraint_beside_tools_is_an_alternative(world: World) -> None:
    use = ToolUse(TOOLS)
    grammar = world.rules().of_calls(check_tools(use), use, YES)
    for lead in ("", THOUGHT):
        assert world.takes(grammar, f"{lead}{FINAL}yes")
        assert world.takes(grammar, lead + CALL)
        assert not world.takes(grammar, f"{lead}{FINAL}maybe")


def test_a_continued_answer_cannot_be_forced_to_call(world: World) -> None:
    forced, free = ToolUse(TOOLS, mode="required"), ToolUse(STRICT)
    with pytest.raises(OutOfBounds, match="leave continue_final_message out"):
        world.rules("final").of_calls(check_tools(forced), forced, None)
    assert world.rules("final").of_calls(check_tools(free), free, YES) is YES
