"""`python -m service`: the gateway alone, from the settings of the environment."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from service.app import create_app
from service.http.protocol import DeadlineProtocol
from workers.client import Client
from workers.errors import LanewiseError
from workers.housekeeping import Housekeeper
from workers.settings import Settings

MAX_CONNECTIONS = 2000
_KEEP_ALIVE_S = 15
_SHUTDOWN_S = 8
_MAX_HEADER_BYTES = 32 * 2**10
_BACKLOG = 512


class StartRefusedError(Exception):
    """The gateway must not or cannot start; the message says the way out."""


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
    except (StartRefusedError, LanewiseError) as error:
        print(f"service: {error}", file=sys.stderr)
        return 1
    asyncio.run(_serve(client, settings, listener))
    return 0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises: StartRefusedError when the address is taken or not ours.
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
            raise StartRefusedError(
                f"port {port} of {host} is taken; stop what uses it, or choose another with "
                "LANEWISE_PORT (0: a free one)"
            ) from error
        raise StartRefusedError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def connect(settings: Settings) -> Client:
    """The client, after the checks that keep an open service off the network.

    Raises: StartRefusedError, StoreUnusable.
    """
    if not settings.redis_url:
        raise StartRefusedError(
            "LANEWISE_REDIS_URL is empty; `lanewise serve` starts a Redis of its own"
        )
    is_local = _is_loopback(settings.host)
    if settings.auth == "off" and not is_local:
        raise StartRefusedError(
            f"auth is off, but {settings.host} can be reached from outside; bind 127.0.0.1"
        )
    client = Client.connect(settings)
    if not is_local and client.store.keys.count_active() == 0:
        client.close()
        raise StartRefusedError(
            f"{settings.host} can be reached from outside and there is no API key yet; make one "
            "with `lanewise keys create`"
        )
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


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
