"""Bounds on JSON schemas that callers send: their size, their depth, where they may point."""

from __future__ import annotations

import json
from typing import Any

from service.errors import BadRequest, shown
from service.http.json_values import as_list, as_object, has_lone_surrogate

MAX_SCHEMA_BYTES = 256 * 2**10
MAX_SCHEMA_DEPTH = 64


def schema_text(schema: dict[str, Any], param: str) -> str:
    """The schema as JSON text, within our bounds; the engine checks that it is one.

    Raises: BadRequest for one that is too large or too deep, or that refers outside itself.
    """
    _check_nodes(schema, param)
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if has_lone_surrogate(text):
        raise BadRequest(f"{param} holds half a character (a lone surrogate).", param=param)
    size_bytes = len(text.encode())
    if size_bytes > MAX_SCHEMA_BYTES:
        raise BadRequest(
            f"{param} has {size_bytes} bytes; at most {MAX_SCHEMA_BYTES} are taken.", param=param
        )
    return text


def _check_nodes(schema: dict[str, Any], param: str) -> None:
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise BadRequest(
                f"{param} is nested more than {MAX_SCHEMA_DEPTH} levels deep.", param=param
            )
        if (items := as_list(node)) is not None:
            waiting += [(item, depth + 1) for item in items]
        elif (members := as_object(node)) is not None:
            target = members.get("$ref")
            if isinstance(target, str) and not target.startswith("#"):
                raise BadRequest(
                    f"{param} refers to {shown(target)}; only references into the schema itself, "
                    "such as #/$defs/name, are followed.",
                    param=param,
                )
            waiting += [(value, depth + 1) for value in members.values()]
