"""A language model over two ranks behind the service: ranks die, answers do not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ARGUMENTS = (
    *("--layout", "tp2", "--video-model", "none", "--dtype", "float32"),
    *("--max-model-len", "512", "--kv-cache", "64MiB", "--speculation", "off"),
)
TOKENS = 40


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    from tests.conftest import Service, ended

    service = Service(tmp_path_factory.mktemp("ranks") / "data", ARGUMENTS).start()
    yield service
    ended(service)


def body(client, **more):
    model = next(m["id"] for m in client.get("/v1/models").json()["data"])
    messages = [{"role": "user", "content": "Tell me about boats."}]
    asked = {"model": model, "messages": messages, "temperature": 0, "max_tokens": TOKENS}
    return asked | {"ignore_eos": True} | more


def streamed(client, on_piece=lambda _: None, **more):
    """The text of a stream, and the error it ended with, if it did."""
    text = ""
    with client.stream("POST", "/v1/chat/completions", json=body(client, stream=True, **more)) as r:
        if r.status_code != 200:
            return text, json.loads(r.read())["error"] | {"retry": r.headers.get("Retry-After")}
        number = 0
        for line in r.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return text, event["error"]
            if event["choices"] and (piece := event["choices"][0]["delta"].get("content")):
                text += piece
                number += 1
                on_piece(number)
    return text, None


def stats(client):
    (row,) = client.get("/v1/engine/stats").json()["data"]
    return row["stats"]


def wait(what, is_so, timeout_s=60.0):
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stream_goes_on_with_the_same_words_when_a_rank_is_lost(served, number):
    with served.client() as client:
        expected, error = streamed(client)
        assert error is None
        assert expected
        victim = served.child("workers.ranks")

        def strike(piece):
            if piece == 8:
                victim.send_signal(number)

        text, error = streamed(client, strike)
        assert (text, error) == (expected, None)
        assert not victim.is_running()
        answer = client.post("/v1/chat/completions", json=body(client)).json()
        assert answer["choices"][0]["message"]["content"] == expected
        wait("the verdict is shown", lambda: f"{victim.pid}" in (
            stats(client)["rank_last_verdict"] or ""
        ))  # fmt: skip
        shown = stats(client)
        assert shown["ranks"]["size"] == 2
        assert shown["ranks"]["restarts_total"] == shown["ranks"]["epoch"] >= 1
        assert served.child("workers.ranks").pid in [p["pid"] for p in shown["rank_processes"]]


def test_an_idle_loss_is_mended_before_anybody_asks(served):
    with served.client() as client:
        wait("the group runs", lambda: stats(client)["rank_state"] == "running")
        victim = served.child("workers.ranks")
        victim.kill()
        wait("another rank is there", lambda: _other_follower(served, victim.pid))
        assert streamed(client)[1] is None


def _other_follower(served, pid):
    try:
        return served.child("workers.ranks").pid != pid
    except AssertionError:
        return False


def test_a_killed_leader_takes_its_ranks_along_and_the_service_recovers(served):
    with served.client() as client:
        expected, _ = streamed(client)
        follower = served.child("workers.ranks")
        leader = psutil.Process(follower.ppid())

        def strike(piece):
            if piece == 8:
                os.kill(leader.pid, signal.SIGKILL)

        begin_s = time.monotonic()
        _, error = streamed(client, strike)
        assert error is not None
        assert time.monotonic() - begin_s < 60
        psutil.wait_procs([follower], timeout=5)
        assert not follower.is_running()

        def works():
            try:
                text, error = streamed(client)
            except httpx.TransportError:
                return False
            assert error is None or error.get("retry"), error
            return text == expected

        wait("the service recovers", works, 90)


def test_ranks_lost_too_often_end_in_a_clear_503_and_a_new_worker(served):
    with served.client() as client:
        expected, error = streamed(client)
        assert error is None
        leader = served.child("workers.ranks").ppid()
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(
                client.post, "/v1/chat/completions", json=body(client, max_tokens=200)
            )
            deadline_s = time.monotonic() + 60
            while not answer.done() and time.monotonic() < deadline_s:
                with contextlib.suppress(AssertionError, psutil.NoSuchProcess):
                    served.child("workers.ranks").kill()
                time.sleep(0.2)
            response = answer.result(60)
        assert response.status_code == 503, response.text
        assert int(response.headers["Retry-After"]) > 0
        error = response.json()["error"]
        assert error["code"] == "engine_dead"
        assert "the ranks were lost too often, the last time: rank 1" in error["message"]
        wait("the service recovers", lambda: streamed(client) == (expected, None), 90)
        assert served.child("workers.ranks").ppid() != leader
