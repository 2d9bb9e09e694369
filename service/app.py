"""The gateway as an ASGI application."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from service.context import Gateway
from service.events import JobEvents
from service.http import error_responses
from service.http.middleware import Envelope
from service.http.openapi import drop_undeclared_422
from service.metrics import Metrics
from service.routes import (
    batches,
    chat,
    completions,
    engine_stats,
    files,
    health,
    job_events,
    job_files,
    jobs,
    keys,
    models,
    page,
    plan,
    videos,
)
from service.signing import UrlSigner, load_secret
from workers.client import Client
from workers.settings import Settings

FALLBACK_VERSION = "0.1.0"
PAGE_FOLDER = Path(__file__).parent / "page"
_log = logging.getLogger("lanewise.service")
_ROUTERS = (
    chat,
    completions,
    models,
    videos,
    files,
    jobs,
    job_events,
    job_files,
    batches,
    plan,
    engine_stats,
    health,
    keys,
)
_UPLOADS_PER_REQUEST = 4


class Background(Protocol):
    """Something that runs beside the requests, such as the housekeeper."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """End, and wait for it."""
        ...


class _App(FastAPI):
    """FastAPI without the error shape that it documents by itself."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return drop_undeclared_422(super().openapi())


def create_app(
    client: Client, settings: Settings, *, background: Callable[[Client], Background] | None = None
) -> FastAPI:
    """The application over one client; `background` runs from start-up to shutdown."""
    signer = UrlSigner(load_secret(settings.resolved_data_dir / "run" / "url-signing.key"))
    metrics = Metrics(client.store.jobs.counts, client.store.workers.list)
    events = JobEvents(client.store, observe=metrics.observe_job)
    gateway = Gateway(
        client=client, settings=settings, signer=signer, metrics=metrics, events=events
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        helper = background(client) if background is not None else None
        events.start()
        if helper is not None:
            helper.start()
        try:
            yield
        finally:
            await events.stop()
            if helper is not None:
                await run_in_threadpool(helper.stop)

    app = _App(
        title="lanewise",
        summary="Chat and image-to-video over many cards, behind one port.",
        version=app_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        max_body_size=_UPLOADS_PER_REQUEST * settings.max_upload_bytes + 2**20,
    )
    app.state.gateway = gateway
    error_responses.install(app)
    for module in _ROUTERS:
        app.include_router(module.router)
    app.include_router(page.make_router(PAGE_FOLDER))
    app.add_middleware(Envelope, metrics=metrics)
    return app


def app_version() -> str:
    """The installed version of the product."""
    try:
        return version("lanewise")
    except PackageNotFoundError:
        return FALLBACK_VERSION
