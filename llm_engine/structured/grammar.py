"""From a constraint to the text of a grammar in the form of llguidance."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from llguidance import regex_to_lark

from llm_engine.structured.bounds import (
    MAX_CHOICES,
    OutOfBounds,
    check_pattern,
    check_size,
    load_schema,
)
from llm_engine.structured.termination import check_terminates
from llm_engine.types import Constraint

# One space, or one line break with an indentation: matched at most once in each place, so that a
# model cannot write white space for ever.
JSON_SPACE = r"\x20|\n\x20{0,32}|\n\t{0,8}"
ANSWER = "answer"
_START = f"start: @{ANSWER}"
# These switch off the way back that drafts need, or hide tokens from the model.
_REFUSED_OPTIONS = ("max_tokens", "stop", "stop_capture", "temperature")
_CHEAP_CHOICES = 1000


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar to be compiled: a Lark text whose `@name` refers to one of the parts.

    `is_cheap` when compiling it takes milliseconds whatever it says; `param` is the request's
    field that it came from.
    """

    parts: Mapping[str, Mapping[str, Any]]
    start: str = _START
    is_cheap: bool = False
    param: str = "response_format"
    text: str = field(init=False)

    def __post_init__(self) -> None:
        """Write the whole as the library reads it."""
        rest = [{"name": name, **part} for name, part in self.parts.items()]
        whole = {"grammars": [{"lark_grammar": self.start}, *rest]}
        object.__setattr__(self, "text", json.dumps(whole))


def grammar_of(constraint: Constraint) -> Grammar:
    """The grammar of a whole answer.

    Raises: OutOfBounds for a constraint that is malformed or too large.
    """
    build = {
        "json_object": _json_object,
        "json_schema": _json_schema,
        "regex": _regex,
        "choice": _choice,
        "grammar": _lark,
    }[constraint.kind]
    part, is_cheap = build(constraint)
    return Grammar({ANSWER: part}, is_cheap=is_cheap, param=param_of(constraint))


def param_of(constraint: Constraint) -> str:
    """The request's field that a constraint comes from."""
    is_json = constraint.kind in ("json_object", "json_schema")
    return "response_format" if is_json else "structured_outputs"


def schema_part(schema: Mapping[str, Any], *, is_strict: bool) -> Mapping[str, Any]:
    """A JSON schema as a part; what cannot be followed is refused under `is_strict`."""
    options = {"whitespace_pattern": JSON_SPACE, "lenient": not is_strict}
    return {"json_schema": {**schema, "x-guidance": options}}


def _json_object(constraint: Constraint) -> tuple[Mapping[str, Any], bool]:
    if constraint.source:
        raise OutOfBounds("json_object takes no source: use json_schema")
    return schema_part({"type": "object"}, is_strict=True), True


def _json_schema(constraint: Constraint) -> tuple[Mapping[str, Any], bool]:
    checked = load_schema(constraint.source, is_strict=constraint.strict)
    check_terminates(checked.schema)
    return schema_part(checked.schema, is_strict=constraint.strict), checked.is_cheap


def _regex(constraint: Constraint) -> tuple[Mapping[str, Any], bool]:
    check_size(constraint.source)
    check_pattern(constraint.source, "the regular expression")
    if not constraint.source:
        raise OutOfBounds("the regular expression is empty, which allows nothing")
    # `\d` means 0 to 9 here, of which other digits of Unicode are no part.
    pattern = regex_to_lark(constraint.source, use_ascii="d").replace("\n", "\\n")
    return {"lark_grammar": f"start: /{pattern}/"}, False


def _choice(constraint: Constraint) -> tuple[Mapping[str, Any], bool]:
    check_size(constraint.source)
    try:
        parsed: object = json.loads(constraint.source)
    except (ValueError, RecursionError) as error:
        raise OutOfBounds(f"choice is no JSON list: {error}") from error
    if not isinstance(parsed, list):
        raise OutOfBounds("choice must be a JSON list of strings")
    options = cast(list[object], parsed)
    if not 1 <= len(options) <= MAX_CHOICES:
        raise OutOfBounds(f"choice has {len(options)} options, must have 1 to {MAX_CHOICES}")
    for i, option in enumerate(options):
        if not isinstance(option, str) or not option:
            raise OutOfBounds(f"choice[{i}] is {option!r}, must be a string that is not empty")
    rule = " | ".join(json.dumps(option) for option in options)
    return {"lark_grammar": f"start: {rule}"}, len(options) <= _CHEAP_CHOICES


def _lark(constraint: Constraint) -> tuple[Mapping[str, Any], bool]:
    check_size(constraint.source)
    for option in _REFUSED_OPTIONS:
        for opening in ("[", ","):
            if f"{opening}{option}=" in constraint.source.replace(" ", ""):
                raise OutOfBounds(f"the grammar's option {option!r} is not supported: leave it out")
    return {"lark_grammar": constraint.source}, False
