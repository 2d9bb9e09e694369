"""Which models are served, from what the workers publish and what is configured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from starlette.concurrency import run_in_threadpool

from service.context import Gateway
from service.errors import NoRoom, NotFound, Unavailable, shown
from workers.client import served_name
from workers.errors import StorageFull
from workers.presence import GONE_AFTER_S
from workers.protocol import VideoLimits, WorkerFacts, WorkerState

Role = Literal["llm", "video"]
_LOADING_RETRY_S = 5
_ABSENT_RETRY_S = 15


def is_ready(worker: WorkerFacts, now: datetime | None = None) -> bool:
    """Whether a worker has its model loaded and was heard of lately."""
    return is_heard(worker, now) and worker.state in {WorkerState.IDLE, WorkerState.BUSY}


def is_heard(worker: WorkerFacts, now: datetime | None = None) -> bool:
    """Whether a worker was heard of lately."""
    return (now or datetime.now(UTC)) - worker.beat_at <= timedelta(seconds=GONE_AFTER_S)


def configured(gateway: Gateway, role: Role) -> str | None:
    """The model that this deployment means to serve in a role."""
    settings = gateway.settings
    name = settings.llm_model if role == "llm" else settings.video_model
    return None if name == "none" else served_name(name)


def known_workers(gateway: Gateway, role: Role | None = None) -> list[WorkerFacts]:
    """All published rows of a role; the readiest and latest first."""
    rows = gateway.client.store.workers.list()
    workers = [w for w in rows if role is None or w.role == role]
    now = datetime.now(UTC)
    return sorted(workers, key=lambda w: (is_ready(w, now), w.beat_at), reverse=True)


def known_models(gateway: Gateway, role: Role) -> list[str]:
    """Names of the models of a role: published ones, then the configured one."""
    names = [worker.model for worker in known_workers(gateway, role)]
    wanted = configured(gateway, role)
    return list(dict.fromkeys(names + ([wanted] if wanted else [])))


@dataclass(frozen=True, slots=True)
class ServedLLM:
    """A worker that can answer now, and the LoRA adapter to answer with."""

    worker: WorkerFacts
    adapter: str | None = None


async def find_llm(gateway: Gateway, name: str) -> ServedLLM:
    """Who answers for `name`: a model, one of its adapters, or "model:adapter".

    A worker that was ready a moment ago is taken without a look at the database; nothing is
    refused without one.
    Raises: NotFound for a name that is not served, Unavailable while no worker has it, NoRoom where
    one cannot be heard because a disk is full.
    """
    for worker, adapter in _serving(gateway.recent.rows(), name):
        if is_ready(worker):
            return ServedLLM(worker, adapter)
    workers = await gateway.recent.looked_up(
        lambda: run_in_threadpool(known_workers, gateway, "llm")
    )
    for worker, adapter in _serving(workers, name):
        if not is_ready(worker):
            if not is_heard(worker):
                await run_in_threadpool(check_room, gateway)
            raise _no_worker(name, worker)
        return ServedLLM(worker, adapter)
    if name == configured(gateway, "llm"):
        await run_in_threadpool(check_room, gateway)
        raise _no_worker(name, None)
    names = await run_in_threadpool(known_models, gateway, "llm")
    raise _unknown(name, adapter_names(workers) + names)


def check_room(gateway: Gateway) -> None:
    """Raises: NoRoom when workers cannot do their work, since a disk is full."""
    try:
        gateway.client.check_room()
    except StorageFull as error:
        raise NoRoom(str(error)) from error


def _serving(workers: Iterable[WorkerFacts], name: str) -> Iterator[tuple[WorkerFacts, str | None]]:
    """The workers that have `name`, each with the adapter that it means."""
    for worker in workers:
        adapter = _adapter_of(worker, name)
        if adapter is not None or worker.model == name:
            yield worker, adapter


def adapter_names(workers: Iterable[WorkerFacts]) -> list[str]:
    """The names of all adapters that workers have."""
    return [name for w in workers if w.llm is not None for name in w.llm.adapters]


def _adapter_of(worker: WorkerFacts, name: str) -> str | None:
    adapters = worker.llm.adapters if worker.llm is not None else ()
    own = name.removeprefix(f"{worker.model}:")
    return own if own in adapters else None


def video_limits(gateway: Gateway, model: str | None) -> tuple[str, VideoLimits]:
    """The video model to use (None: the deployment's) and its published limits.

    The worker may be down: its last row is enough to take jobs.
    Raises: NotFound for a model that is not served, Unavailable where no limits are known.
    """
    name = model or next(iter(known_models(gateway, "video")), None)
    if name is None:
        raise Unavailable(
            "This deployment serves no video model.",
            param="model",
            code="no_worker_for_model",
            headers={"Retry-After": str(_ABSENT_RETRY_S)},
        )
    for worker in known_workers(gateway, "video"):
        if worker.model == name and worker.video is not None:
            return name, worker.video
    raise _no_worker(name, _row(gateway, "video", name))


def _row(gateway: Gateway, role: Role, model: str) -> WorkerFacts | None:
    for worker in known_workers(gateway, role):
        if worker.model == model:
            return worker
    names = known_models(gateway, role)
    if model in names:
        return None
    raise _unknown(model, names)


def _unknown(model: str, names: Iterable[str]) -> NotFound:
    listed = ", ".join(names) or "none"
    return NotFound(
        f"The model {shown(model)} does not exist here; served for this route: {listed}.",
        param="model",
        code="model_not_found",
    )


def _no_worker(model: str, worker: WorkerFacts | None) -> Unavailable:
    retry_s, why = _ABSENT_RETRY_S, "no worker has it loaded"
    if worker is not None and is_heard(worker):
        if worker.state == WorkerState.LOADING:
            retry_s, why = _LOADING_RETRY_S, "it is being loaded"
        if worker.state == WorkerState.FAILED:
            why = f"its worker failed: {worker.error or 'no reason given'}"
    return Unavailable(
        f"The model {model} cannot answer now: {why}.",
        param="model",
        code="no_worker_for_model",
        headers={"Retry-After": str(retry_s)},
    )
