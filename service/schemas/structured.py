"""What an answer must match: `response_format`, and the extra field `structured_outputs`."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from service.errors import BadRequest
from service.schemas.json_schemas import schema_text
from service.schemas.strict import NAME, Body
from workers.protocol import ChatConstraint

_MAX_PATTERN_CHARS = 16 * 2**10
_MAX_GRAMMAR_CHARS = 64 * 2**10
_MAX_OPTIONS = 1024
_MAX_OPTION_CHARS = 4096
_Option = Annotated[str, Field(min_length=1, max_length=_MAX_OPTION_CHARS)]


class JsonSchema(Body):
    """A named JSON schema.

    Under `strict` a schema with a keyword that is unknown or cannot be followed is refused;
    without it such a keyword binds nothing.
    """

    name: str = Field(pattern=NAME)
    description: str | None = Field(default=None, max_length=_MAX_PATTERN_CHARS)
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's three kinds."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def constraint(self) -> ChatConstraint | None:
        """What the answer must match; None for text.

        Raises: BadRequest for a kind without its schema.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return ChatConstraint(kind="json_object")
        if self.json_schema is None:
            raise BadRequest(
                "response_format.json_schema is required for the type json_schema.",
                param="response_format.json_schema",
            )
        schema = {} if self.json_schema.schema_ is None else self.json_schema.schema_
        text = schema_text(schema, "response_format.json_schema.schema")
        strict = bool(self.json_schema.strict)
        return ChatConstraint(kind="json_schema", source=text, strict=strict)


class StructuredOutputs(Body):
    """Exactly one of: a regular expression, a choice, a Lark grammar, a JSON schema."""

    model_config = ConfigDict(extra="forbid")

    regex: str | None = Field(default=None, min_length=1, max_length=_MAX_PATTERN_CHARS)
    choice: list[_Option] | None = Field(default=None, min_length=1, max_length=_MAX_OPTIONS)
    grammar: str | None = Field(default=None, min_length=1, max_length=_MAX_GRAMMAR_CHARS)
    json_: dict[str, Any] | None = Field(default=None, alias="json")

    def constraint(self) -> ChatConstraint:
        """What the answer must match.

        Raises: BadRequest unless exactly one kind is given.
        """
        found: list[ChatConstraint] = []
        if self.regex is not None:
            found.append(ChatConstraint(kind="regex", source=self.regex))
        if self.choice is not None:
            found.append(ChatConstraint(kind="choice", source=json.dumps(self.choice)))
        if self.grammar is not None:
            found.append(ChatConstraint(kind="grammar", source=self.grammar))
        if self.json_ is not None:
            text = schema_text(self.json_, "structured_outputs.json")
            found.append(ChatConstraint(kind="json_schema", source=text))
        if len(found) != 1:
            raise BadRequest(
                f"structured_outputs holds {len(found)} of regex, choice, grammar and json; give "
                "exactly one.",
                param="structured_outputs",
            )
        return found[0]


def constraint_of(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None
) -> ChatConstraint | None:
    """The one thing that an answer must match; None where it is free.

    Raises: BadRequest when both fields bind it.
    """
    asked = None if response_format is None else response_format.constraint()
    if structured is None:
        return asked
    if asked is not None:
        raise BadRequest(
            "response_format and structured_outputs both bind the answer; leave one out.",
            param="structured_outputs",
        )
    return structured.constraint()
