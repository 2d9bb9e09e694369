"""What every route shares, handed in by `create_app` and found through the request."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from service.events import JobEvents
from service.metrics import Metrics
from service.recent_keys import RecentKeys
from service.recent_workers import RecentWorkers
from service.signing import UrlSigner
from workers.client import Client
from workers.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The gateway's parts: the client to queue and store, and its own."""

    client: Client
    settings: Settings
    signer: UrlSigner
    metrics: Metrics
    events: JobEvents
    recent: RecentWorkers = field(default_factory=RecentWorkers)
    recent_keys: RecentKeys = field(default_factory=RecentKeys)
    batch_lock: threading.Lock = field(default_factory=threading.Lock)


async def _gateway(request: Request) -> Gateway:  # not a function: that would cost a thread
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


GatewayDep = Annotated[Gateway, Depends(_gateway)]
