"""Webhooks: signed by the specification, tried again, and never sent into private networks."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

import pytest
from standardwebhooks import Webhook

from workers.protocol import JobLabels, VideoJobRequest
from workers.store import open_store
from workers.webhooks.outbound_address import AddressRefused, is_public, resolve_target
from workers.webhooks.sender import BACKOFF_S, WebhookSender, webhook_secret

SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ="


class Receiver:
    """A local server that answers with the given statuses, one after the other."""

    def __init__(self, *answers, headers=None):
        self.seen = []
        script = list(answers)
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                seen.append((dict(self.headers), body))
                self.send_response(script.pop(0) if len(script) > 1 else script[0])
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook?a=b"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class Clock:
    def __init__(self):
        self.now = datetime.now(UTC)

    def __call__(self):
        return self.now

    def forward(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with open_store(f"sqlite:///{tmp_path}/db", str(tmp_path / "art"), clock=clock) as opened:
        yield opened


def end_a_job(store, url):
    request = VideoJobRequest(
        model="m",
        image="file-x",
        prompt="",
        seconds=1,
        fps=8,
        width=64,
        height=64,
        seed=1,
        steps=1,
    )
    created = store.jobs.create(request, JobLabels(webhook_url=url), key_id="k", max_queued=10)
    store.jobs.request_cancel(created.job.id, None)
    return created.job.id


def send(store, clock, *, allow_private=True):
    sender = WebhookSender(store.webhooks, SECRET, allow_private=allow_private, clock=clock)
    return asyncio.run(sender.send_due())


def test_a_webhook_is_signed_as_the_specification_says(store, clock):
    receiver = Receiver(200)
    job_id = end_a_job(store, receiver.url)
    assert send(store, clock) == 1
    (headers, body) = receiver.seen[0]
    payload = Webhook(SECRET).verify(body, headers)
    assert payload["type"] == "job.cancelled"
    assert payload["data"]["id"] == job_id
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert send(store, clock) == 0
    receiver.close()


def test_k17_500_500_200_is_delivered_with_one_id(store, clock):
    receiver = Receiver(500, 500, 200)
    job_id = end_a_job(store, receiver.url)
    for seconds in (6, 331, 0):
        assert send(store, clock) == 1
        assert send(store, clock) == 0
        clock.forward(seconds)
    assert len(receiver.seen) == 3
    assert len({headers["webhook-id"] for headers, _ in receiver.seen}) == 1
    assert len({body for _, body in receiver.seen}) == 1
    (event,) = store.webhooks.of_job(job_id)
    assert event.delivered_at is not None
    receiver.close()


def test_it_is_given_up_after_the_whole_back_off(store, clock):
    receiver = Receiver(500)
    end_a_job(store, receiver.url)
    tries = 0
    while send(store, clock):
        tries += 1
        clock.forward(100_000)
    assert tries == len(BACKOFF_S) + 1 == 10
    receiver.close()


def test_retry_after_is_honoured(store, clock):
    receiver = Receiver(503, headers={"Retry-After": "1000"})
    end_a_job(store, receiver.url)
    assert send(store, clock) == 1
    clock.forward(900)
    assert send(store, clock) == 0
    clock.forward(101)
    assert send(store, clock) == 1
    receiver.close()


def test_410_ends_everything_for_the_receiver(store, clock):
    receiver = Receiver(200, 410)
    for _ in range(3):
        end_a_job(store, receiver.url)
    sender = WebhookSender(store.webhooks, SECRET, allow_private=True, clock=clock)
    assert asyncio.run(sender.send_due(limit=1)) == 1
    assert asyncio.run(sender.send_due(limit=1)) == 1
    clock.forward(100_000)
    assert send(store, clock) == 0
    assert len(receiver.seen) == 2
    receiver.close()


def test_redirects_are_not_followed(store, clock):
    hidden = Receiver(200)
    receiver = Receiver(302, headers={"Location": hidden.url})
    end_a_job(store, receiver.url)
    assert send(store, clock) == 1
    assert len(receiver.seen) == 1
    assert hidden.seen == []
    receiver.close()
    hidden.close()


def test_h1_private_receivers_are_never_dialled(store, clock):
    receiver = Receiver(200)
    for host in ("127.0.0.1", "localhost.", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433", "0"):
        end_a_job(store, f"http://{host}:{receiver.port}/")
        end_a_job(store, f"http://{host}/")
    while send(store, clock, allow_private=False):
        clock.forward(100_000)
    assert receiver.seen == []
    receiver.close()


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://example.com/",
        "http://user@127.0.0.1#@example.com",
        "http://169.254.169.254/latest/meta-data/",
        "https://10.0.0.1/",
        "https://[fd00::1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "http://93.184.215.14:6379/",
        "http://127.0.0.1:99999/",
        "nonsense",
    ],
)
def test_addresses_that_are_refused(url):
    with pytest.raises(AddressRefused):
        asyncio.run(resolve_target(url, allow_private=False))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:4700::1111", True),
        ("::ffff:93.184.215.14", True),
        ("::ffff:10.0.0.1", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("::1", False),
    ],
)
def test_public_addresses(address, public):
    assert is_public(ip_address(address)) is public


def test_the_address_that_was_checked_is_the_one_that_is_called():
    target = asyncio.run(resolve_target("https://93.184.215.14/a?b=c", allow_private=False))
    assert (target.address, target.port, target.path) == ("93.184.215.14", 443, "/a?b=c")


def test_the_secret_is_made_once_and_private(tmp_path):
    secret = webhook_secret("", tmp_path)
    assert secret == webhook_secret("", tmp_path)
    assert secret.startswith("whsec_")
    assert (tmp_path / "webhook-secret.txt").stat().st_mode & 0o777 == 0o600
    assert webhook_secret("whsec_abc", tmp_path) == "whsec_abc"
    assert [path.name for path in tmp_path.iterdir()] == ["webhook-secret.txt"]
