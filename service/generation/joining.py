"""Text that arrived at once leaves at once: one chunk in place of several."""

from __future__ import annotations

from collections.abc import Sequence

from service.generation.stream import Placed
from workers.protocol import ChatDelta


def joined(batch: Sequence[Placed]) -> list[Placed]:
    """The batch, with the plain texts that follow each other in one choice as one delta.

    A chunk may hold several tokens. What carries more than text stays as it is.
    """
    if len(batch) < 2:
        return list(batch)
    found: list[Placed] = []
    run: list[ChatDelta] = []
    place = -1
    for position, event in batch:
        follows = bool(run) and position == place and _continues(event, run[-1].index)
        if not follows:
            found += _flushed(place, run)
            run = []
        if isinstance(event, ChatDelta) and (follows or is_plain(event)):
            place = position
            run.append(event)
        else:
            found.append((position, event))
    return found + _flushed(place, run)


def is_plain(delta: ChatDelta) -> bool:
    """Whether a delta holds text and nothing else."""
    return (
        delta.logprobs is None
        and delta.finish_reason is None
        and not delta.reasoning
        and not delta.tool_calls
    )


def _continues(event: object, index: int) -> bool:
    return isinstance(event, ChatDelta) and event.index == index and is_plain(event)


def _flushed(position: int, run: Sequence[ChatDelta]) -> list[Placed]:
    if len(run) < 2:
        return [(position, delta) for delta in run]
    text = "".join(delta.text for delta in run)
    num_tokens = sum(delta.num_tokens for delta in run)
    return [(position, ChatDelta(index=run[0].index, text=text, num_tokens=num_tokens))]
