"""Nasty constraints: refused with a reason, within their time, with nothing left behind."""

import json
import threading
import time

import psutil
import pytest

from llm_engine.errors import InvalidRequest
from llm_engine.structured.bounds import MAX_SOURCE_BYTES, OutOfBounds
from llm_engine.structured.child_process import CompilingProcess
from llm_engine.structured.compiler import LIMITS, GrammarCompiler
from llm_engine.structured.grammar import Grammar, grammar_of
from llm_engine.structured.vocabulary import Vocabulary
from llm_engine.types import Constraint

# No bound of ours stands before this one: its automaton has ten million states.
RUNAWAY = Grammar({"answer": {"json_schema": {"type": "integer", "multipleOf": 9_999_991}}})


def nested(levels: int) -> str:
    return '{"type":"array","items":' * levels + "{}" + "}" * levels


REFUSED = [
    ("json_schema", "no JSON", "no JSON"),
    ("json_schema", "[1]", "a schema is a JSON object"),
    ("json_schema", '"x"', "a schema is a JSON object"),
    ("json_schema", "false", "allows nothing"),
    ("json_schema", '{"minimum": NaN}', "NaN is no JSON number"),
    ("json_schema", nested(1000), "nested deeper"),
    ("json_schema", "[" * 200_000, "nested deeper"),
    ("json_schema", {"enum": ["x" * 70] * 150_000}, str(MAX_SOURCE_BYTES)),
    ("json_schema", {"$ref": "#"}, r"\$ requires itself"),
    (
        "json_schema",
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        "again and again|in a circle",
    ),
    (
        "json_schema",
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        r"\$.properties.a requires itself",
    ),
    ("json_schema", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "requires itself"),
    ("json_schema", {"$ref": "#/$defs/nowhere"}, "nowhere"),
    ("json_schema", {"$ref": "https://example.com/x.json"}, "example.com"),
    ("json_schema", {"type": "nope"}, "nope"),
    ("json_schema", {"type": "object", "properties": 3}, "properties"),
    ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}, "5.*3"),
    ("json_schema", {"allOf": [{"type": "string"}, {"type": "integer"}]}, "nsatisfiable"),
    ("json_schema", {"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ("json_schema", {"type": "string", "pattern": r"(a)\1"}, "backreferences"),
    ("json_schema", {"type": "string", "pattern": "("}, "unclosed"),
    (
        "json_schema",
        {"properties": {"p": {"pattern": "a" * 5000}}},
        r"\$.properties.p.pattern has 5000",
    ),
    ("json_schema", {"patternProperties": {"a" * 5000: {}}}, "patternProperties"),
    ("json_schema", {"items": {"multipleOf": 9_999_991}}, r"\$.items.multipleOf is 9999991"),
    ("json_schema", {"anyOf": []}, "empty"),
    ("json_object", "{}", "takes no source"),
    ("regex", "", "empty"),
    ("regex", "[", "unclosed"),
    ("regex", "(?<=a)b", "look-around"),
    ("regex", "a" * 5000, "5000 characters"),
    ("choice", "x", "no JSON list"),
    ("choice", "{}", "must be a JSON list"),
    ("choice", [], "0 options"),
    ("choice", ["a", 1], r"choice\[1\] is 1"),
    ("choice", [""], "must be a string that is not empty"),
    ("choice", ["x"] * 10_001, "10001 options"),
    ("grammar", "", "start"),
    ("grammar", "start: missing", "missing"),
    ("grammar", "start: start", "in a circle"),
    ("grammar", 'start: "a', "lexer error"),
    ("grammar", 'start: x\nx[max_tokens=3]: "a"', "max_tokens"),
    ("grammar", 'start: x\nx[lazy, stop="b"]: "a"', "stop"),
    ("grammar", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested|broke the compiler"),
]


@pytest.mark.parametrize(
    ("kind", "source", "match"), REFUSED, ids=[f"{row[0]}-{i}" for i, row in enumerate(REFUSED)]
)
def test_refused_with_a_reason(kind, source, match, compiler: GrammarCompiler) -> None:
    text = source if isinstance(source, str) else json.dumps(source)
    began_s = time.monotonic()
    with pytest.raises((InvalidRequest, OutOfBounds), match=match) as raised:
        compiler.compile(grammar_of(Constraint(kind, text)))
    assert time.monotonic() - began_s < 15
    assert len(str(raised.value)) < 700


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ({"type": "string", "frobnicate": 1}, r"\$ has the unknown keyword 'frobnicate'"),
        ({"properties": {"a": {"typ": "string"}}}, r"\$.properties.a has the unknown .* 'typ'"),
        ({"items": {"not": {}}}, r"\$.items has the keyword 'not'"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "a has .*'uniqueItems'"),
        ({"if": {}, "then": {}}, r"\$ has the keyword 'if'"),
        ({"type": "string", "format": "zork"}, "zork"),
    ],
)
def test_strict_refuses_what_it_cannot_follow(schema, match, compiler: GrammarCompiler) -> None:
    source = json.dumps(schema)
    with pytest.raises((InvalidRequest, OutOfBounds), match=match):
        compiler.compile(grammar_of(Constraint("json_schema", source, strict=True)))
    lenient = compiler.compile(grammar_of(Constraint("json_schema", source)))
    assert lenient.matcher() is not None


def test_what_is_not_enforced_is_said(compiler: GrammarCompiler, caplog) -> None:
    schema = '{"type": "array", "uniqueItems": true, "maxItems": 77}'
    compiled = compiler.compile(grammar_of(Constraint("json_schema", schema)))
    assert "uniqueItems" in compiled.unenforced[0]
    assert "not enforced" in caplog.text


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "(a{1,1000}){1,1000}"),
        ("regex", "(a|b)*a(a|b){500}"),
        ("json_schema", {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}),
        ("json_schema", {"type": "string", "pattern": "^(.*a.{20})$"}),
        ("json_schema", {"type": "string", "minLength": 100_000, "maxLength": 1_000_000}),
        ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}),
        ("json_schema", {"enum": [f"x{i:07d}" for i in range(20_000)]}),
        ("json_schema", {"type": "array", "items": {"$ref": "#"}}),
    ],
)
def test_large_counts_are_no_harm(kind, source, compiler, write) -> None:
    """They compile in time, and no mask takes long."""
    text = source if isinstance(source, str) else json.dumps(source)
    matcher = compiler.compile(grammar_of(Constraint(kind, text))).matcher()
    began_s = time.monotonic()
    write(matcher, 0, max_tokens=40)
    assert time.monotonic() - began_s < 10


def test_a_runaway_is_killed_and_the_next_is_served(vocabulary: Vocabulary) -> None:
    others = children()
    compiler = GrammarCompiler(vocabulary, timeout_s=0.5)
    began_s = time.monotonic()
    refusals: list[InvalidRequest] = []

    def ask() -> None:
        with pytest.raises(InvalidRequest, match=r"not compile within 0.5 s") as raised:
            compiler.compile(RUNAWAY)
        refusals.append(raised.value)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == 4, "all that asked for the same wait for one attempt"
    assert refusals[0].param == "response_format"
    ask()
    compiled = compiler.compile(grammar_of(Constraint("regex", "ab+")))
    assert compiled.matcher() is not None
    assert time.monotonic() - began_s < 30
    compiler.close()
    assert children() == others


def test_a_child_that_is_shot_is_replaced(vocabulary: Vocabulary) -> None:
    others = children()
    process = CompilingProcess(vocabulary.tokenizer_json, vocabulary.size, (2,))
    grammar = grammar_of(Constraint("regex", "ab"))
    assert process.try_out(grammar.text, LIMITS, 20.0) == ("", ())
    (child,) = children() - others
    child.kill()
    child.wait()
    assert process.try_out(grammar.text, LIMITS, 20.0) == ("", ())
    process.close()
    assert children() == others


def test_an_owner_that_is_forgotten_leaves_no_child(vocabulary: Vocabulary) -> None:
    others = children()
    process = CompilingProcess(vocabulary.tokenizer_json, vocabulary.size, (2,))
    process.try_out(grammar_of(Constraint("regex", "ab")).text, LIMITS, 20.0)
    (child,) = children() - others
    del process
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running()


def test_results_and_refusals_are_kept(compiler: GrammarCompiler) -> None:
    good = grammar_of(Constraint("json_schema", '{"type": "integer", "minimum": 41}'))
    assert compiler.compile(good) is compiler.compile(good)
    bad = grammar_of(Constraint("grammar", "start: nowhere_to_be_found"))
    errors = []
    for _ in range(2):
        with pytest.raises(InvalidRequest) as raised:
            compiler.compile(bad)
        errors.append(raised.value)
    assert errors[0] is errors[1]


def children() -> set[psutil.Process]:
    """The compiling processes of this test process."""
    found = psutil.Process().children()
    return {c for c in found if any("compile_child" in word for word in c.cmdline())}
