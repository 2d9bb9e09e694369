"""Chat fields that would change the answer and cannot be honoured: refused by name, not ignored."""

from __future__ import annotations

from typing import Any

from service.errors import BadRequest, shown
from service.http.json_values import as_list, as_object

_IGNORED = {
    "store", "service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "verbosity", "tools", "tool_choice", "parallel_tool_calls",
    "response_format", "modalities",
}  # fmt: skip
_NEVER = ("audio", "prediction", "web_search_options", "functions", "function_call", "moderation")


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
    _refuse_tools(body)
    _refuse_formats(body.get("response_format"))
    for index, message in enumerate(as_list(body.get("messages")) or []):
        if (found := as_object(message)) is not None:
            _refuse_parts(index, found)


def unknown_fields(body: dict[str, Any], known: set[str]) -> list[str]:
    """Names that neither OpenAI's schema nor ours knows, for the log."""
    return sorted(name[:64] for name in body if name not in known and name not in _IGNORED)


def _refuse_tools(body: dict[str, Any]) -> None:
    if body.get("tools"):
        raise _unsupported("tools", "Tool calling is not supported yet; leave tools out.")
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise _unsupported("tool_choice", "tool_choice needs tools, which are not supported yet.")


def _refuse_formats(response_format: object) -> None:
    if response_format is None:
        return
    asked = as_object(response_format) or {"type": response_format}
    kind = asked.get("type")
    if kind == "json_schema" and not isinstance(asked.get("json_schema"), dict):
        raise BadRequest(
            "response_format.json_schema is required for the type json_schema.",
            param="response_format.json_schema",
        )
    if kind != "text":
        raise _unsupported(
            "response_format", f"response_format {shown(kind)} is not supported yet; use 'text'."
        )


def _refuse_parts(index: int, message: dict[str, Any]) -> None:
    if message.get("tool_calls") or message.get("function_call"):
        raise _unsupported(f"messages.{index}.tool_calls", "Tool calls are not supported yet.")
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
