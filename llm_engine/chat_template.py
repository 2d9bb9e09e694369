"""Messages put into the form the model's chat template expects."""

from collections.abc import Sequence

from llm_engine.errors import InvalidRequest
from llm_engine.types import ChatMessage

ROLES = ("system", "developer", "user", "assistant", "tool")


def to_template_messages(messages: Sequence[ChatMessage], template: str) -> list[dict[str, str]]:
    """Check the roles; where the template knows no developer role, render it as system.

    System messages that then stand together at the beginning are merged into one.
    Raises: InvalidRequest for a role nobody knows.
    """
    for message in messages:
        if message.role not in ROLES:
            raise InvalidRequest(
                f"role is {message.role!r}, must be one of {', '.join(ROLES)}", param="messages"
            )
    has_developer = any(message.role == "developer" for message in messages)
    rendered = [_to_mapping(message) for message in messages]
    if not has_developer or "developer" in template:
        return rendered
    for entry in rendered:
        if entry["role"] == "developer":
            entry["role"] = "system"
    return _merge_leading_system(rendered)


def _to_mapping(message: ChatMessage) -> dict[str, str]:
    entry = {"role": message.role, "content": message.content}
    if message.name is not None:
        entry["name"] = message.name
    return entry


def _merge_leading_system(entries: list[dict[str, str]]) -> list[dict[str, str]]:
    num_leading = 0
    while num_leading < len(entries) and entries[num_leading]["role"] == "system":
        num_leading += 1
    if num_leading < 2:
        return entries
    content = "\n\n".join(entry["content"] for entry in entries[:num_leading])
    return [{"role": "system", "content": content}, *entries[num_leading:]]
