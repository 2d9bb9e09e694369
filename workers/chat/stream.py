"""Chat over Redis: key names, time-outs, and the form of an entry.

chat:{id}    the request as JSON; the worker that deletes it has taken it
tok:{id}     a stream; each entry holds `n` (0, 1, 2 …), `w` (the worker) and `e` (events as JSON)
cancel:{id}  set by the gateway: stop working on it
alive:{id}   refreshed by the gateway while somebody reads; when it is gone, so is the reader
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from workers.protocol import ChatEvent

_EVENTS: TypeAdapter[list[ChatEvent]] = TypeAdapter(list[ChatEvent])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTiming:
    """How long things live and how often they are looked at. Units: seconds."""

    request_ttl_s: int = 600
    stream_ttl_s: int = 600
    stream_max_entries: int = 20_000
    alive_ttl_s: int = 15
    alive_refresh_s: float = 5.0
    alive_grace_s: float = 6.0
    watch_s: float = 0.2
    batch_s: float = 0.012
    silence_s: float = 2.0


def request_key(chat_id: str) -> str:
    """Where the request lies."""
    return f"chat:{chat_id}"


def token_key(chat_id: str) -> str:
    """The stream of the answer."""
    return f"tok:{chat_id}"


def cancel_key(chat_id: str) -> str:
    """Exists when the answer is no longer wanted."""
    return f"cancel:{chat_id}"


def alive_key(chat_id: str) -> str:
    """Exists while somebody reads the answer."""
    return f"alive:{chat_id}"


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of an answer's stream; the first has number 0 and may hold no events.

    `number` has no gaps, so a reader knows when entries were lost with the broker's memory.
    """

    number: int
    worker: str
    events: tuple[ChatEvent, ...]

    def fields(self) -> dict[str, str | bytes | int]:
        """The entry as stream fields."""
        return {"n": self.number, "w": self.worker, "e": encode_events(self.events)}

    @classmethod
    def parse(cls, fields: dict[bytes, bytes]) -> StreamEntry:
        """The entry from stream fields.

        Raises: pydantic.ValidationError when the events are not ours.
        """
        events = tuple(_EVENTS.validate_json(fields[b"e"]))
        return cls(int(fields[b"n"]), fields[b"w"].decode(), events)


def encode_events(events: Sequence[ChatEvent]) -> bytes:
    """Events as one JSON list."""
    return _EVENTS.dump_json(list(events))
