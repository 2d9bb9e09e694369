"""What every worker process does around its engine: log, publish itself, consume, drain."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from celery.exceptions import SecurityWarning
from celery.signals import worker_ready, worker_shutting_down

from workers.app import Role, make_app, queue_name, served_name
from workers.drain import Drain
from workers.logs import configure_logging
from workers.parent import watch_parent
from workers.planning.inputs import PlanFailed
from workers.planning.plan import plan_document
from workers.presence import Presence, worker_id
from workers.protocol import LLMLimits, VideoLimits, WorkerFacts, WorkerState
from workers.store import open_store
from workers.store.clock import utc_now

if TYPE_CHECKING:
    from celery import Celery

    from workers.settings import Settings
    from workers.store import Store

_logger = logging.getLogger(__name__)
_WAKE_S = 0.1
Engine = TypeVar("Engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What a role builds its worker from."""

    settings: Settings
    app: Celery
    store: Store
    presence: Presence
    drain: Drain
    model: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[Engine]):
    """A resident engine and what to say about it.

    `decisions` and `stats` read its choices so far and its counters, from any thread.
    """

    engine: Engine
    source: str
    card: dict[str, Any]
    llm: LLMLimits | None = None
    video: VideoLimits | None = None
    decisions: Callable[[], tuple[dict[str, Any], ...]] = tuple[dict[str, Any], ...]
    stats: Callable[[], dict[str, Any]] = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """What a role makes of its engine: tasks at once, what to do at the end, the exit code."""

    concurrency: int
    close: Callable[[], None] = lambda: None
    exit_code: Callable[[], int] = lambda: 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRole(Generic[Engine]):
    """How one kind of worker loads its engine and serves it (registering its task)."""

    role: Role
    model: str
    devices: str
    load: Callable[[], Loaded[Engine]]
    serve: Callable[[WorkerParts, Loaded[Engine]], Consumer]


def run_worker(settings: Settings, role: WorkerRole[Any]) -> int:
    """Load, consume until told to stop, leave; the exit code of the process.

    SIGTERM stops taking tasks and starts the drain; running tasks end by its rules.
    """
    configure_logging(settings.log_level)
    watch_parent(settings.supervisor_pid)
    with open_store(settings.resolved_database_url, settings.resolved_artifact_url) as store:
        presence = Presence(store.workers, _first_facts(role), utc_now)
        presence.start()
        try:
            loaded = _load(role, presence)
        except Exception as error:
            presence.fail(f"{type(error).__name__}: {error}", state=WorkerState.FAILED)
            raise
        parts = WorkerParts(
            settings=settings,
            app=make_app(settings, settings.redis_url),
            store=store,
            presence=presence,
            drain=Drain(),
            model=served_name(role.model),
            worker=presence.facts.id,
        )
        consumer = role.serve(parts, loaded)
        presence.update(state=WorkerState.IDLE)
        try:
            _consume(parts, role.role, consumer.concurrency)
        finally:
            consumer.close()
            parts.drain.done()
            presence.leave()
    return consumer.exit_code()


def _first_facts(role: WorkerRole[Any]) -> WorkerFacts:
    now = utc_now()
    return WorkerFacts(
        id=worker_id(role.role),
        role=role.role,
        model=served_name(role.model),
        state=WorkerState.LOADING,
        devices=role.devices or "cpu",
        started_at=now,
        beat_at=now,
    )


def _load(role: WorkerRole[Any], presence: Presence) -> Loaded[Any]:
    started_s = time.monotonic()
    loaded = role.load()
    load_s = round(time.monotonic() - started_s, 2)
    presence.watch(lambda: {"stats": loaded.stats(), "decisions": loaded.decisions()})
    presence.update(
        source=loaded.source,
        card=loaded.card | {"load_seconds": load_s},
        plan=_plan(role.model),
        llm=loaded.llm,
        video=loaded.video,
    )
    _logger.info("%s %s loaded from %s in %.1f s", role.role, role.model, loaded.source, load_s)
    return loaded


def _plan(model: str) -> dict[str, Any]:
    """What would run where on this machine; a model that no plan covers says so."""
    try:
        return plan_document(model)
    except PlanFailed as error:
        return {"error": str(error)}


def _consume(parts: WorkerParts, role: Role, concurrency: int) -> None:
    def on_shutdown(**_: object) -> None:
        parts.drain.start()

    def on_ready(sender: Any, **_: object) -> None:  # noqa: ANN401 - Celery's consumer
        # A task that ends in its thread does not wake Celery's loop, which would take the next
        # message up to a second later.
        while wakers:
            wakers.pop().cancel()
        wakers.append(sender.hub.call_repeatedly(_WAKE_S, lambda: None))

    wakers: list[Any] = []
    worker_ready.connect(on_ready, weak=False)
    worker_shutting_down.connect(on_shutdown, weak=False)
    # Celery warns of running as root because pickled messages could run code; ours are JSON.
    warnings.simplefilter("ignore", SecurityWarning)
    worker = parts.app.Worker(
        hostname=f"{parts.worker}@lanewise",
        queues=[queue_name(role, parts.model)],
        pool="threads",
        concurrency=concurrency,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="DEBUG" if parts.settings.log_level == "debug" else "WARNING",
        redirect_stdouts=False,
        quiet=True,
    )
    worker.start()
