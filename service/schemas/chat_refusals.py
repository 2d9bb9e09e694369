"""Fields that would change the answer and cannot be honoured: refused by name, not ignored."""

from __future__ import annotations

import logging
from typing import Any

from service.errors import BadRequest, shown
from service.http.json_values import as_list, as_object

_log = logging.getLogger("lanewise.service")
_IGNORED = {
    "store", "service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "verbosity", "modalities",
}  # fmt: skip
_ELSEWHERE = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "functions": "tools",
    "function_call": "tool_choice",
}
_NEVER = ("audio", "prediction", "web_search_options", "moderation")


def refuse_unsupported(body: dict[str, Any]) -> None:
    """Return if nothing in `body` asks for what is not there.

    Raises: BadRequest with code `unsupported_parameter`, `invalid_image_url` or
    `unsupported_content`.
    """
    for name in _NEVER:
        if body.get(name):
            raise _unsupported(name, f"{name} is not supported; leave it out.")
    if body.get("store"):
        raise _unsupported("store", "store is true, but answers are not kept; leave it out.")
    if "audio" in (as_list(body.get("modalities")) or []):
        raise _unsupported("modalities", "modalities holds 'audio'; only text is made.")
    refuse_replaced(body)
    for index, tool in enumerate(as_list(body.get("tools")) or []):
        if (kind := (as_object(tool) or {}).get("type")) not in (None, "function"):
            param = f"tools.{index}.type"
            raise _unsupported(param, f"{param} is {shown(kind)}; only functions can be called.")
    for index, message in enumerate(as_list(body.get("messages")) or []):
        if (found := as_object(message)) is not None:
            _refuse_parts(index, found)


def refuse_replaced(body: dict[str, Any]) -> None:
    """Refuse older names of what has another name here.

    Raises: BadRequest with code `unsupported_parameter` naming the field to use.
    """
    for name, instead in _ELSEWHERE.items():
        if body.get(name):
            raise _unsupported(name, f"{name} is not supported; use {instead}.")


def note_unknown(body: dict[str, Any], known: frozenset[str]) -> None:
    """Log the names that neither OpenAI's schema nor ours knows."""
    if unknown := sorted(name[:64] for name in body if name not in known | _IGNORED):
        _log.warning("ignored unknown fields: %s", ", ".join(unknown[:20]))


def _refuse_parts(index: int, message: dict[str, Any]) -> None:
    if message.get("role") == "function" or message.get("function_call"):
        raise _unsupported(
            f"messages.{index}", "Function messages are replaced by tool_calls and role tool."
        )
    for place, part in enumerate(as_list(message.get("content")) or []):
        found = as_object(part) or {}
        kind = found.get("type")
        param = f"messages.{index}.content.{place}"
        if kind == "image_url":
            _refuse_image(param, found.get("image_url"))
        if kind in {"input_audio", "file"}:
            raise BadRequest(
                f"{param} is of the type {kind}; this model reads text only.",
                param=param,
                code="unsupported_content",
            )


def _refuse_image(param: str, image: object) -> None:
    members = as_object(image)
    url = image if members is None else members.get("url")
    if not isinstance(url, str) or not url.lower().startswith("data:"):
        raise BadRequest(
            f"{param}.image_url is not a data: URL; addresses are never fetched.",
            param=f"{param}.image_url",
            code="invalid_image_url",
        )
    raise BadRequest(
        f"{param} is a picture; this model reads text only.",
        param=param,
        code="unsupported_content",
    )


def _unsupported(param: str, message: str) -> BadRequest:
    return BadRequest(message, param=param, code="unsupported_parameter")
