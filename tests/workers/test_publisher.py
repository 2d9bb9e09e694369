"""When the publisher writes: at once for a first and a last event, together for the rest."""

from __future__ import annotations

import json
import queue
from contextlib import contextmanager

import pytest

from llm_engine.types import Finished, TextDelta
from workers.chat.publisher import ChatPublisher
from workers.chat.stream import ChatTiming
from workers.chat.stream_interval import MANY, StreamInterval, choose_interval

SOON_S, NEVER_S = 5.0, 60.0


class RecordingRedis:
    """Keeps what a pipeline's XADD writes."""

    def __init__(self) -> None:
        self.writes = queue.SimpleQueue()

    @contextmanager
    def pipeline(self, transaction):
        assert not transaction
        yield self

    def xadd(self, key, fields, maxlen, approximate):
        self.writes.put(json.loads(fields["e"]))

    def expire(self, key, seconds):
        pass

    def execute(self):
        pass


@pytest.fixture
def redis():
    return RecordingRedis()


@pytest.fixture
def publisher(redis):
    interval = StreamInterval(long_s=NEVER_S)
    made = ChatPublisher(redis, "w", ChatTiming(), interval, on_end=lambda chat_id, last: None)
    made.start()
    yield made
    made.stop()


def delta(text):
    return TextDelta(index=0, text=text, token_ids=(1,), logprobs=None, finish_reason=None)


def texts(redis, count):
    """The next `count` texts that are written, by answer."""
    found = {}
    while sum(map(len, found.values())) < count:
        for chat_id, _, events in redis.writes.get(timeout=SOON_S):
            found.setdefault(chat_id, []).extend(e["text"] for e in events if e["type"] == "delta")
    return found


def begin(publisher, redis, count):
    for number in range(count):
        publisher.open(f"c{number}", "reply:x")
        publisher.put(f"c{number}", delta("first"))
    assert texts(redis, count) == {f"c{n}": ["first"] for n in range(count)}


def test_tokens_of_many_answers_wait_for_each_other(publisher, redis):
    begin(publisher, redis, MANY)
    for text in ("second", "third"):
        for number in range(MANY):
            publisher.put(f"c{number}", delta(text))
    with pytest.raises(queue.Empty):
        redis.writes.get(timeout=0.3)
    publisher.open("late", "reply:x")
    publisher.put("late", delta("first"))  # nobody waits long for a first token
    everything = {f"c{n}": ["second", "third"] for n in range(MANY)} | {"late": ["first"]}
    assert texts(redis, 2 * MANY + 1) == everything


def test_an_end_does_not_wait(publisher, redis):
    begin(publisher, redis, MANY)
    publisher.put("c0", delta("second"))
    publisher.put("c0", Finished(prompt_tokens=1, completion_tokens=2, cached_tokens=0))
    assert texts(redis, 1) == {"c0": ["second"]}


def test_few_answers_do_not_wait(publisher, redis):
    begin(publisher, redis, MANY - 1)
    publisher.put("c0", delta("second"))
    assert texts(redis, 1) == {"c0": ["second"]}


def test_a_stop_writes_what_waits(publisher, redis):
    begin(publisher, redis, MANY)
    publisher.put("c0", delta("second"))
    publisher.stop()
    assert texts(redis, 1) == {"c0": ["second"]}


@pytest.mark.parametrize(
    ("asked_s", "on_cpu", "long_s", "source"),
    [(0, True, 0.05, "default"), (0, False, 0.003, "default"), (0.2, True, 0.2, "explicit")],
)
def test_the_choice_says_why(asked_s, on_cpu, long_s, source):
    interval, decision = choose_interval(asked_s, on_cpu=on_cpu)
    assert interval.seconds(MANY) == long_s
    assert interval.seconds(MANY - 1) == 0.003
    assert (decision.source, decision.chosen) == (source, f"{1e3 * long_s:g} ms")
    assert decision.reasons


def test_an_interval_below_the_short_one_holds_for_all():
    interval, _ = choose_interval(0.001, on_cpu=True)
    assert interval.seconds(1) == interval.seconds(MANY) == 0.001
