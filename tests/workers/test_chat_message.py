"""The message of a chat is the one that Celery itself would send."""

from __future__ import annotations

import base64
import json
from typing import Any

from kombu.transport.memory import Channel

from workers.app import make_app, queue_name, queue_of, send
from workers.chat.message import chat_message
from workers.settings import Settings

MODEL = "Tiny/Model-1"
# They name the sender or must differ from message to message.
OWN = {"id", "root_id", "origin", "correlation_id", "reply_to", "delivery_tag"}


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its body decoded, without what is its sender's own."""
    body = json.loads(base64.b64decode(message["body"]))
    cut = {
        part: {k: v for k, v in message[part].items() if k not in OWN}
        for part in ("headers", "properties")
    }
    return message | cut | {"body": body}


def by_celery(chat_id: str) -> dict[str, Any]:
    app = make_app(Settings(llm_model=MODEL, redis_url="redis://unused"), "redis://unused")
    app.conf.update(broker_url="memory://", broker_transport_options={})
    send(app, "llm", MODEL, chat_id)
    return Channel.queues[queue_name("llm", MODEL)].get(timeout=5)


def test_a_hand_written_message_says_what_celery_says() -> None:
    theirs, ours = by_celery("chat-1"), json.loads(chat_message(MODEL, "chat-1"))
    assert plain(ours) == plain(theirs)
    for part in ("headers", "properties"):
        assert ours[part].keys() == theirs[part].keys()
        assert {k: type(v) for k, v in ours[part].items()} == {
            k: type(v) for k, v in theirs[part].items()
        }


def test_a_message_that_is_sent_again_is_another_message() -> None:
    tags = {json.loads(chat_message(MODEL, "x"))["properties"]["delivery_tag"] for _ in range(50)}
    assert len(tags) == 50


def test_only_chats_go_without_acknowledgement() -> None:
    assert queue_of("llm", MODEL).no_ack
    assert not queue_of("video", MODEL).no_ack
