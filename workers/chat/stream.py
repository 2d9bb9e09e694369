"""Chat over Redis: key names, time-outs, and the forms of what lies there.

chat:{id}     the request as JSON; the worker that deletes it has taken it
reply:{name}  one stream per gateway process, for all its answers: an entry holds `w` (the worker)
              and `e` (what it wrote at that moment for each answer, as JSON)
cancel:{id}   set by the gateway: stop working on it
alive:{id}    refreshed by the gateway while somebody reads; when it is gone, so is the reader
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from workers.protocol import ChatEvent, ChatRequest
from workers.protocol.wire import Wire

Part = tuple[str, int, list[ChatEvent]]
Written = tuple[str, int, list[dict[str, Any]]]
_PARTS: TypeAdapter[list[Part]] = TypeAdapter(list[Part])
_JSON = json.JSONEncoder(separators=(",", ":"), check_circular=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTiming:
    """How long things live and how often they are looked at. Units: seconds."""

    request_ttl_s: int = 600
    stream_ttl_s: int = 600
    stream_max_entries: int = 20_000
    stream_trim_s: float = 2.0
    alive_ttl_s: int = 15
    alive_refresh_s: float = 5.0
    alive_grace_s: float = 6.0
    watch_s: float = 0.2
    silence_s: float = 2.0


class ChatLetter(Wire):
    """A request and the stream that its answer goes to."""

    reply_to: str
    request: ChatRequest


def request_key(chat_id: str) -> str:
    """Where the request lies."""
    return f"chat:{chat_id}"


def reply_key(name: str) -> str:
    """The stream of a gateway's answers."""
    return f"reply:{name}"


def cancel_key(chat_id: str) -> str:
    """Exists when the answer is no longer wanted."""
    return f"cancel:{chat_id}"


def alive_key(chat_id: str) -> str:
    """Exists while somebody reads the answer."""
    return f"alive:{chat_id}"


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of a gateway's stream: parts (chat id, number, events) of several answers.

    The first part of an answer has number 0 and may hold no events. The numbers of an answer have
    no gaps, so a reader knows when parts were lost with the broker's memory.
    """

    worker: str
    parts: Sequence[Part]

    @classmethod
    def parse(cls, fields: dict[bytes, bytes]) -> StreamEntry:
        """The entry from stream fields.

        Raises: pydantic.ValidationError when the events are not ours.
        """
        return cls(fields[b"w"].decode(), _PARTS.validate_json(fields[b"e"]))


def entry_fields(worker: str, parts: Sequence[Written]) -> dict[str, str]:
    """A `StreamEntry` as stream fields; its events are plain values here."""
    return {"w": worker, "e": _JSON.encode(parts)}
