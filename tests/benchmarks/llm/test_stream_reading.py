"""Answers read off a socket: the pieces they came in change the times and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.llm.hop_rows import hop_times
from benchmarks.llm.redis_watch import parsed
from benchmarks.llm.stream_reading import read_answer

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Lanewise-Plan: aaa\r\n\r\n"


def event(text):
    choice = {"delta": {"content": text}, "finish_reason": None}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=6), st.data())
def test_any_cut_gives_the_same_text_and_the_time_of_each_last_byte(texts, data):
    chunks = [chunk(event(text)) for text in texts]
    raw = HEAD + b"".join(chunks) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=8)))
    pieces = [
        (float(number), raw[begin:end])
        for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(raw)], strict=True))
    ]
    answer = read_answer(0.0, pieces, "", logprobs=False)
    assert (answer.text, answer.plan_hash, answer.is_done) == ("".join(texts), "aaa", True)
    ends = [len(HEAD) + sum(map(len, chunks[: n + 1])) - 2 for n in range(len(chunks))]
    assert answer.times == [float(sum(cut < end for cut in cuts)) for end in ends]


@pytest.mark.parametrize("kept", [0, 5, len(HEAD) - 1, len(HEAD) + 1, len(HEAD) + 9])
def test_an_answer_that_breaks_off_is_an_error(kept):
    raw = (HEAD + chunk(event("hello")))[:kept]
    assert read_answer(0.0, [(1.0, raw)], "", logprobs=False).error


MONITOR = rb"""
1.5 [0 unix:/r.sock] "SET" "chat:1" "{\"id\":\"1\"}" "EX" "600"
1.5 [0 unix:/r.sock] "LPUSH" "llm.tiny" "{}"
1.75 [0 unix:/r.sock] "GETDEL" "chat:1"
1.875 [0 unix:/r.sock] "XADD" "reply:a" "MAXLEN" "~" "20000" "*" "w" "llm-1" "e" "[[\"1\",0,[]]]"
1.9 [0 unix:/r.sock] "XADD" "reply:a" "*" "w" "llm-1" "e" "[[\"1\",1,[{\"type\":\"delta\"}]]]"
""".strip().replace(b"\n", b"\r\n")


def test_the_hops_of_a_request_sum_to_its_time():
    hops = hop_times(1.0, 2.0, parsed(MONITOR))
    assert hops == pytest.approx([0.5, 0.0, 0.25, 0.15, 0.1])
    assert sum(hops) == pytest.approx(1.0)


def test_a_missing_hop_is_said():
    with pytest.raises(OSError, match="GETDEL"):
        hop_times(1.0, 2.0, parsed(MONITOR.replace(b"GETDEL", b"GET")))
