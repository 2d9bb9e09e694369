"""Matchers: what they allow, the way back, and the answers that come out."""

import json
import re

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.structured.grammar_matcher import GrammarMatcher
from llm_engine.structured.matcher import allocate_bitmask

EOS, OTHER_EOS = 2, 0
ADDRESS = {"type": "object", "properties": {"street": {"type": "string", "maxLength": 12}}}
# Twenty schemas of the kinds that clients send.
SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "string", "maxLength": 8},
    {"type": "integer", "minimum": -5, "maximum": 120},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["red", "green", 3, None, {"a": 1}]},
    {"const": {"kind": "x"}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]},
    {"allOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 9}]},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 10_000},
    {
        "type": "object",
        "properties": {
            "home": {"$ref": "#/$defs/address"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["home"],
        "additionalProperties": False,
        "$defs": {"address": {**ADDRESS, "additionalProperties": False}},
    },
    {"type": ["integer", "null"]},
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    },
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_random_answers_follow_their_schema(schema, strict, matcher_of, write) -> None:
    texts = [write(matcher_of("json_schema", schema, strict=strict), seed) for seed in range(4)]
    ended = [text for text in texts if text is not None]
    assert ended
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for text in ended:
        validator.validate(json.loads(text))


def test_json_object_is_an_object(matcher_of, write) -> None:
    texts = [write(matcher_of("json_object"), seed) for seed in range(5)]
    assert all(isinstance(json.loads(text), dict) for text in texts if text is not None)
    assert any(texts)


@pytest.mark.parametrize(
    "pattern",
    [r"\d{3}-\d{4}", r"^(yes|no)\.?$", r"[a-c]+/[x-z]", r"(?i)ok", r"a\nb", "ä+", "a\\/b"],
)
def test_a_regex_matches_the_whole(pattern, matcher_of, write) -> None:
    texts = [write(matcher_of("regex", pattern), seed, 60) for seed in range(5)]
    assert any(texts)
    for text in texts:
        assert text is None or re.fullmatch(pattern, text)


def test_a_choice_is_one_of_its_options(matcher_of, write) -> None:
    options = ["yes", "no", "yes, but", 'a "quote"\n', "Łódź 🙂"]
    texts = {write(matcher_of("choice", options), seed) for seed in range(30)}
    assert texts <= set(options)
    assert len(texts) >= 3


def test_a_lark_grammar(matcher_of, write) -> None:
    grammar = 'start: sum\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[1-9][0-9]{0,2}/'
    texts = [write(matcher_of("grammar", grammar), seed) for seed in range(5)]
    assert all(re.fullmatch(r"[1-9]\d{0,2}(\+[1-9]\d{0,2})*", text) for text in texts if text)


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ('{"a": 1, "b": [1, 2]}', True),
        ('{"a":1}', True),
        ('{\n  "a": {\n    "b": 1\n  }\n}', True),
        ('{\n\t"a": 1\n}', True),
        ('{"a":  1}', False),
        ('{\n\n"a": 1}', False),
        ("{" + "\n" + " " * 40 + "}", False),
    ],
)
def test_white_space_in_json_is_bounded(text, is_taken, matcher_of, tokenizer) -> None:
    matcher = matcher_of("json_object")
    taken = all(matcher.accept(token_id) for token_id in tokenizer.encode(text))
    assert (taken and matcher.is_finished) is is_taken


def test_the_end_is_allowed_where_the_answer_is_complete(matcher_of, allowed, tokenizer) -> None:
    matcher = matcher_of("regex", "ab?")
    a, b = tokenizer.encode("a")[0], tokenizer.encode("b")[0]
    assert EOS not in allowed(matcher)
    assert not matcher.accept(EOS)
    assert matcher.accept(a)
    assert {EOS, OTHER_EOS, b} <= allowed(matcher)
    assert not matcher.is_finished
    assert not matcher.accept(a)
    assert matcher.accept(b)
    assert matcher.is_finished
    assert allowed(matcher) == {EOS, OTHER_EOS}
    assert matcher.accept(OTHER_EOS)
    assert matcher.is_finished
    assert allowed(matcher) == {EOS, OTHER_EOS}
    assert not matcher.accept(b)
    matcher.rollback(2)
    assert not matcher.is_finished
    assert {EOS, OTHER_EOS, b} <= allowed(matcher)
    assert matcher.accept(EOS)
    assert matcher.is_finished
    matcher.rollback(2)
    assert EOS not in allowed(matcher)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), back=st.integers(1, 12))
def test_rollback_is_exact(seed, back, matcher_of, allowed) -> None:
    """After any tokens and any way back, the mask is that of a fresh matcher fed the rest."""
    import random

    rng = random.Random(seed)
    schema = SCHEMAS[17]
    matcher, fresh = matcher_of("json_schema", schema), matcher_of("json_schema", schema)
    written: list[int] = []
    for _ in range(20):
        ids = sorted(allowed(matcher) - {EOS, OTHER_EOS})
        if not ids:
            break
        written.append(rng.choice(ids))
        assert matcher.accept(written[-1])
    back = min(back, len(written))
    matcher.rollback(back)
    assert all(fresh.accept(token_id) for token_id in written[: len(written) - back])
    assert allowed(matcher) == allowed(fresh)
    assert matcher.is_finished == fresh.is_finished


def test_forced_tokens_are_those_that_alone_are_allowed(matcher_of, allowed, tokenizer) -> None:
    matcher = matcher_of("choice", ["abracadabra"])
    forced = matcher.forced_tokens()
    assert tokenizer.decode(forced) == "abracadabra"
    assert all(matcher.accept(token_id) for token_id in forced)
    assert matcher.forced_tokens() == []


def test_states_of_one_grammar_are_apart(matcher_of, allowed, tokenizer) -> None:
    one, two = matcher_of("choice", ["yes", "no"]), matcher_of("choice", ["yes", "no"])
    before = allowed(two)
    assert one.accept(tokenizer.encode("yes")[0])
    assert one.is_finished
    assert allowed(two) == before


def test_a_wider_or_narrower_row_is_filled(matcher_of) -> None:
    matcher = matcher_of("choice", ["yes"])
    assert isinstance(matcher, GrammarMatcher)
    exact_W = allocate_bitmask(1, 49_152)[0]
    matcher.fill(exact_W)
    wide_W = allocate_bitmask(1, 49_152 + 64)[0]
    matcher.fill(wide_W)
    assert torch.equal(wide_W[:-2], exact_W)
    assert not wide_W[-2:].any()
    narrow_W = allocate_bitmask(1, 40_000)[0]
    matcher.fill(narrow_W)
    assert torch.equal(narrow_W, exact_W[:1250])
