"""`python -m service`: the gateway alone, from the settings of the environment."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys

import uvicorn
import uvloop
from fastapi import FastAPI
from pydantic import ValidationError

from service.app import create_app
from service.http.protocol import DeadlineProtocol
from workers.client import Client
from workers.deployment.start_checks import StartRefused, check_exposure
from workers.drain import ANSWER_LIMIT_S
from workers.errors import LanewiseError
from workers.housekeeping import Housekeeper
from workers.settings import Settings

MAX_CONNECTIONS = 2000
_KEEP_ALIVE_S = 15
# Workers are told to stop at the same moment; what they say last must still be passed on.
_SHUTDOWN_S = int(ANSWER_LIMIT_S) + 5
_MAX_HEADER_BYTES = 32 * 2**10
_BACKLOG = 512


class _Server(uvicorn.Server):
    """Ends the event streams first, so that a shutdown need not wait for them."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: object) -> None:
        self._app.state.gateway.events.hang_up()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


def main() -> int:
    """Serve until a signal; the exit code is 0 after a clean end."""
    try:
        settings = Settings()
    except ValidationError as error:
        print(f"service: {error}", file=sys.stderr)
        return 2
    _set_up_logging(settings.log_level)
    try:
        listener = bind(settings.host, settings.port)
        client = connect(settings)
    except LanewiseError as error:
        print(f"service: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, StartRefused) else 1
    # uvloop's sockets take less of the cores that a CPU engine computes on: with 32 streams about
    # 1.5 % of the throughput.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(client, settings, listener))
    return 0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises: StartRefused when the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it on, the end of
    # an answer waits up to 40 ms for the caller's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartRefused(
                f"port {port} of {host} is taken; stop what uses it, or choose another with "
                "LANEWISE_PORT (0: a free one)"
            ) from error
        raise StartRefused(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def connect(settings: Settings) -> Client:
    """The client, after the checks that keep an open service off the network.

    Raises: StartRefused, StoreUnusable.
    """
    if not settings.redis_url:
        raise StartRefused(
            "LANEWISE_REDIS_URL is empty; `lanewise serve` starts a Redis of its own"
        )
    client = Client.connect(settings)
    try:
        check_exposure(settings, client.store.keys.count_active())
    except StartRefused:
        client.close()
        raise
    return client


async def _serve(client: Client, settings: Settings, listener: socket.socket) -> None:
    app = create_app(client, settings, background=Housekeeper)
    config = uvicorn.Config(
        app,
        http=DeadlineProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    server = _Server(config, app)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again after a clean end; by then there is nothing left to stop
        signal.signal(number, _do_nothing)
    host, port = listener.getsockname()[:2]
    logging.getLogger("lanewise.service").info("listening on http://%s:%d", host, port)
    try:
        await server.serve(sockets=[listener])
    finally:
        await client.aclose()


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    for noisy in ("httpx", "kombu", "amqp", "PIL", "multipart", "python_multipart", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _do_nothing(number: int, frame: object) -> None:
    del number, frame


if __name__ == "__main__":
    sys.exit(main())
