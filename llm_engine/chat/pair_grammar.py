"""The grammar of arguments that stand between tags: one key after the other, in order."""

import json
from collections.abc import Mapping
from typing import Any, cast

from llm_engine.chat.formats import CallFormat
from llm_engine.chat.reasoning_grammar import ReasoningPrefix
from llm_engine.structured.grammar import schema_part

_KEY = {
    "xml": "<parameter=KEY>\n",
    "pairs": "<arg_key>KEY</arg_key>\n<arg_value>",
}
_CLOSE = {"xml": ("\n", "</parameter>", "\n"), "pairs": ("", "</arg_value>", "\n")}


def pair_rules(
    name: str, form: CallFormat, schema: Mapping[str, Any], prefix: ReasoningPrefix
) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Parts and rules, `name` the rule of all pairs; optional ones may be left out.

    A string is any text, or one of its enum; its other bounds have no form outside of JSON.
    """
    found: object = schema.get("properties")
    properties = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    required = schema.get("required") or ()
    parts: dict[str, Mapping[str, Any]] = {}
    lines: list[str] = []
    references: list[str] = []
    for i, (key, entry) in enumerate(properties.items()):
        rule = f"{name}_{i}"
        begin = prefix.vocabulary.literal(_KEY[form.style].replace("KEY", key))
        lines.append(f"{rule}: {begin} {rule}_value")
        lines += _value(f"{rule}_value", form, entry, prefix)
        if not _is_text(entry):
            parts[f"{rule}_json"] = _part(schema, entry)
        references.append(rule if key in required else f"{rule}?")
    lines.append(f"{name}: {' '.join(references) or prefix.vocabulary.literal('')}")
    return parts, lines


def _value(rule: str, form: CallFormat, entry: object, prefix: ReasoningPrefix) -> list[str]:
    before, close, after = _CLOSE[form.style]
    literal = prefix.vocabulary.literal
    end = literal(before + close + after)
    if not _is_text(entry):
        return [f"{rule}: @{rule.removesuffix('_value')}_json {end}"]
    options = cast(dict[str, Any], entry).get("enum")
    if isinstance(options, list) and options:
        texts = " | ".join(json.dumps(str(option)) for option in cast(list[object], options))
        return [f"{rule}: ({texts}) {end}"]
    rest = literal(after)
    return [f"{rule}: {rule}_text {rest}", *prefix.until(f"{rule}_text", before + close)]


def _part(root: Mapping[str, Any], entry: object) -> Mapping[str, Any]:
    """One property's schema as a document of its own, with what it may refer to."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    own = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    return schema_part({**shared, **own}, is_strict=False)


def _is_text(entry: object) -> bool:
    return isinstance(entry, dict) and cast(dict[str, Any], entry).get("type") == "string"
