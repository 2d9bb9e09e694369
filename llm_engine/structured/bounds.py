"""What a constraint may be before anything is compiled: sizes, depth, keywords.

Bounds name the place by a path such as `$.properties.tags.items`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

MAX_SOURCE_BYTES = 512 * 1024
MAX_DEPTH = 96
MAX_PATTERN_CHARS = 4096
MAX_CHOICES = 10_000
MAX_MULTIPLE = 10_000
_APPLICATORS = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_ASSERTIONS = frozenset(
    [
        "$ref",
        "const",
        "dependentRequired",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "required",
        "type",
        "uniqueItems",
    ]
)
_ANNOTATIONS = frozenset(
    [
        "$anchor",
        "$comment",
        "$id",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "id",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
    ]
)
KNOWN_KEYWORDS = _APPLICATORS | _LISTS | _MAPS | _ASSERTIONS | _ANNOTATIONS
# A schema without these, and small, compiles within milliseconds whatever it holds.
_COSTLY = frozenset({"$ref", "allOf", "multipleOf", "oneOf", "pattern", "patternProperties"})
_CHEAP_NODES = 200
_CHEAP_BYTES = 8192


class OutOfBounds(ValueError):
    """A constraint that is refused; the message names the place, the value and the bound."""


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema within bounds; `is_cheap` when its compilation needs no watching."""

    schema: Mapping[str, Any]
    is_cheap: bool


def load_schema(source: str, *, is_strict: bool) -> CheckedSchema:
    """Read and check a JSON schema.

    Raises: OutOfBounds for text that is no schema, and for one that is too large, too deep, allows
        nothing, or under `is_strict` has a keyword nobody knows.
    """
    check_size(source)
    try:
        parsed: object = json.loads(source, parse_constant=_refuse_constant)
    except ValueError as error:
        raise OutOfBounds(f"it is no JSON: {error}") from error
    except RecursionError as error:
        raise OutOfBounds(f"it is nested deeper than {MAX_DEPTH} levels") from error
    if isinstance(parsed, bool):
        if not parsed:
            raise OutOfBounds("the schema is false, which allows nothing")
        parsed = {}
    if not isinstance(parsed, dict):
        raise OutOfBounds(f"a schema is a JSON object, not {type(parsed).__name__}")
    schema = cast(dict[str, Any], parsed)
    _check_depth(schema)
    num_nodes, is_costly = 0, len(source) > _CHEAP_BYTES
    for path, node in walk(schema):
        num_nodes += 1
        is_costly |= not _COSTLY.isdisjoint(node)
        _check_node(path, node, is_strict=is_strict)
    return CheckedSchema(schema, is_cheap=not is_costly and num_nodes <= _CHEAP_NODES)


def check_size(source: str) -> None:
    """Raises: OutOfBounds for a constraint of more than `MAX_SOURCE_BYTES`."""
    size_bytes = len(source.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_SOURCE_BYTES:
        raise OutOfBounds(f"it has {size_bytes} bytes, at most {MAX_SOURCE_BYTES} are taken")


def check_pattern(pattern: str, where: str) -> None:
    """Raises: OutOfBounds for a regular expression that is too long."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise OutOfBounds(
            f"{where} has {len(pattern)} characters, at most {MAX_PATTERN_CHARS} are taken"
        )


def walk(schema: object, path: str = "$") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every subschema that is an object, with its path; what stands in enum or const is data."""
    if not isinstance(schema, dict):
        return
    node = cast(dict[str, Any], schema)
    yield path, node
    for key, value in node.items():
        if key in _APPLICATORS and not isinstance(value, list):
            yield from walk(value, f"{path}.{key}")
        elif key in _LISTS or key in _APPLICATORS:
            for i, entry in enumerate(_items(value)):
                yield from walk(entry, f"{path}.{key}[{i}]")
        elif key in _MAPS and isinstance(value, dict):
            for name, entry in cast(dict[str, Any], value).items():
                yield from walk(entry, f"{path}.{key}.{name}")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _items(value: object) -> Sequence[object]:
    return cast(list[object], value) if isinstance(value, list) else ()


def _check_depth(root: object) -> None:
    level, depth = [root], 0
    while level:
        if depth > MAX_DEPTH:
            raise OutOfBounds(f"it is nested deeper than {MAX_DEPTH} levels")
        depth += 1
        below: list[object] = []
        for entry in level:
            if isinstance(entry, dict):
                below.extend(cast(dict[str, object], entry).values())
            elif isinstance(entry, list):
                below.extend(cast(list[object], entry))
        level = below


def _check_node(path: str, node: Mapping[str, Any], *, is_strict: bool) -> None:
    if is_strict:
        unknown = [key for key in node if key not in KNOWN_KEYWORDS and not key.startswith("x-")]
        if unknown:
            raise OutOfBounds(f"strict, and {path} has the unknown keyword {unknown[0]!r}")
    if isinstance(node.get("pattern"), str):
        check_pattern(node["pattern"], f"{path}.pattern")
    by_pattern = node.get("patternProperties")
    for pattern in cast(dict[str, Any], by_pattern) if isinstance(by_pattern, dict) else ():
        check_pattern(pattern, f"a key of {path}.patternProperties")
    multiple = node.get("multipleOf")
    if isinstance(multiple, int | float) and multiple > MAX_MULTIPLE:
        raise OutOfBounds(f"{path}.multipleOf is {multiple}, must be at most {MAX_MULTIPLE}")
