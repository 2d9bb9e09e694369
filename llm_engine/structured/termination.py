"""Whether a schema has a finite answer: an object that requires itself has none."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from llm_engine.structured.bounds import OutOfBounds, walk

_MAX_ROUNDS = 64


def check_terminates(schema: Mapping[str, Any]) -> None:
    """Find the least set of subschemas with a finite answer, by rounds.

    Raises: OutOfBounds naming a place that can only be filled by itself, over and over.
    """
    nodes = list(walk(schema))
    if not any("$ref" in node for _, node in nodes):
        return
    finite: set[int] = set()
    for _ in range(_MAX_ROUNDS):
        num_before = len(finite)
        for _, node in reversed(nodes):
            if id(node) not in finite and _is_finite(node, schema, finite):
                finite.add(id(node))
        if len(finite) == num_before:
            break
    else:
        return
    if id(schema) not in finite:
        path = next(path for path, node in reversed(nodes) if id(node) not in finite)
        raise OutOfBounds(f"no answer would ever end: {path} requires itself again and again")


def _is_finite(node: Mapping[str, Any], root: Mapping[str, Any], finite: set[int]) -> bool:
    def known(entry: object) -> bool:
        return not isinstance(entry, dict) or id(cast(object, entry)) in finite

    reference = node.get("$ref")
    if isinstance(reference, str) and not known(_target(reference, root)):
        return False
    if not all(known(entry) for entry in _list(node.get("allOf"))):
        return False
    for key in ("anyOf", "oneOf"):
        options = _list(node.get(key))
        if options and not any(known(entry) for entry in options):
            return False
    if node.get("type") == "object" and isinstance(node.get("properties"), dict):
        required = {name for name in _list(node.get("required")) if isinstance(name, str)}
        properties = cast(dict[str, object], node["properties"])
        return all(known(properties[name]) for name in required if name in properties)
    if node.get("type") == "array" and isinstance(node.get("minItems"), int | float):
        return node["minItems"] <= 0 or known(node.get("items"))
    return True


def _target(reference: str, root: Mapping[str, Any]) -> object:
    """What a local reference points at; None for others, which the compiler refuses."""
    if not reference.startswith("#"):
        return None
    place: object = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = cast(dict[str, object], place).get(name)
        elif isinstance(place, list) and name.isdigit():
            items = cast(list[object], place)
            place = items[int(name)] if int(name) < len(items) else None
        else:
            return None
    return place


def _list(value: object) -> Sequence[object]:
    return cast(list[object], value) if isinstance(value, list) else ()
