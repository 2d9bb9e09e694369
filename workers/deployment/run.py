"""One run of a deployment, on the supervisor's event loop: start in order, keep, stop."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from sqlalchemy.exc import SQLAlchemyError

from workers.deployment.child import ChildSpec
from workers.deployment.family import Family
from workers.deployment.redis_server import (
    RedisUnusable,
    check_policy,
    clear_leftover,
    trouble_with,
)
from workers.deployment.start_checks import KEY_FILE, device_environment, make_first_key
from workers.deployment.start_table import start_table
from workers.presence import GONE_AFTER_S, worker_id

if TYPE_CHECKING:
    from workers.deployment.redis_server import RedisPlan
    from workers.settings import Settings
    from workers.store import Store

_REDIS = "redis"
_REDIS_START_S = 30.0
_REDIS_STOP_S = 5.0
_ASK_S = 0.3
_NEWS_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """How the children are started."""

    gateway: tuple[str, ...] = (sys.executable, "-m", "service")
    llm: tuple[str, ...] = (sys.executable, "-m", "workers", "llm")
    video: tuple[str, ...] = (sys.executable, "-m", "workers", "video")


class Deployment:
    """Redis first, then the gateway and the workers side by side."""

    def __init__(
        self,
        settings: Settings,
        plan: RedisPlan,
        store: Store,
        commands: Commands,
        say: Callable[[str], None],
    ) -> None:
        """Take settings that name the Redis and the port; belongs to the running event loop."""
        self._settings = settings
        self._plan = plan
        self._store = store
        self._commands = commands
        self._say = say
        self._data_dir = settings.resolved_data_dir
        self._endpoint = self._data_dir / "run" / "endpoint.json"
        self._tasks: list[asyncio.Task[None]] = []
        self._trouble: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._family = Family(self._data_dir / "logs", say, self._forget_worker)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"

    async def run(self) -> int:
        """Start, run until SIGTERM or SIGINT, stop all; the exit code.

        Raises: LanewiseError when something cannot be started or kept running.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        stopping = asyncio.create_task(stop.wait())
        starting = self._watched(self._start())
        await asyncio.wait({stopping, self._trouble}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        stopping.cancel()
        await self._stop()
        await asyncio.wait(self._tasks)
        if self._trouble.done():
            self._trouble.result()
        return 0

    # ------------------------------------------------------------ start

    async def _start(self) -> None:
        await self._start_redis()
        for spec in self._specs():
            self._watched(self._family.keep(spec))
        await self._wait_until_ready()
        self._family.is_ready = True
        await asyncio.to_thread(self._announce)

    def _watched(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the rest; its error ends the deployment."""

        def on_end(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not self._trouble.done():
                self._trouble.set_exception(error)

        task = asyncio.create_task(work)
        task.add_done_callback(on_end)
        self._tasks.append(task)
        return task

    async def _start_redis(self) -> None:
        self._say(f"using {self._plan.description}")
        done = await asyncio.to_thread(clear_leftover, self._plan)
        for note in filter(None, (self._plan.warning, done)):
            self._say(f"note: {note}")
        if self._plan.command is not None:
            spec = ChildSpec(
                name=_REDIS,
                command=self._plan.command,
                environment=self._settings.child_environment(),
            )
            self._watched(self._family.keep(spec))
        deadline_s = time.monotonic() + _REDIS_START_S
        while (trouble := await asyncio.to_thread(trouble_with, self._plan.url)) is not None:
            if time.monotonic() > deadline_s:
                raise RedisUnusable(f"Redis does not answer: {trouble}")
            await asyncio.sleep(0.05)
        note = await asyncio.to_thread(check_policy, self._plan.url)
        if note is not None:
            self._say(f"note: {note}")

    def _specs(self) -> list[ChildSpec]:
        settings = self._settings
        wanted = [
            ("gateway", "", self._commands.gateway, ""),
            ("llm", settings.llm_model, self._commands.llm, settings.llm_devices),
            ("video", settings.video_model, self._commands.video, settings.video_devices),
        ]
        return [
            ChildSpec(
                name=name,
                command=command,
                environment=settings.child_environment(**device_environment(devices)),
                role="" if name == "gateway" else name,
            )
            for name, model, command, devices in wanted
            if model != "none"
        ]

    async def _wait_until_ready(self) -> None:
        told_s = time.monotonic()
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            while not await self._is_ready(client):
                await asyncio.sleep(_ASK_S)
                if time.monotonic() - told_s > _NEWS_S:
                    told_s = time.monotonic()
                    self._say("still starting: " + await asyncio.to_thread(self._states))

    async def _is_ready(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(f"{self._url}/readyz")).status_code == 200
        except httpx.HTTPError:
            return False

    def _states(self) -> str:
        workers = self._store.workers.list(GONE_AFTER_S)
        return ", ".join(f"{w.role} {w.model} {w.state}" for w in workers) or "no worker yet"

    def _announce(self) -> None:
        key_file = self._data_dir / KEY_FILE
        secret = None
        if self._settings.auth == "on":
            secret = make_first_key(self._store.keys, self._data_dir)
        endpoint = {
            "url": self._url,
            "pid": self._settings.supervisor_pid,
            "key_file": str(key_file) if key_file.exists() else None,
        }
        scratch = self._endpoint.with_suffix(".tmp")
        scratch.write_text(json.dumps(endpoint) + "\n", encoding="utf-8")
        scratch.replace(self._endpoint)
        for line in start_table(self._store.workers.list(GONE_AFTER_S)):
            self._say(line)
        if secret is not None:
            self._say(f"first key, shown once: {secret}   (also in {key_file})")
        self._say(f"ready at {self._url}")

    # ------------------------------------------------------------ stop

    async def _stop(self) -> None:
        """Gateway and workers first, since they need Redis to end well; then Redis."""
        self._endpoint.unlink(missing_ok=True)
        self._say("stopping")
        others = [name for name in self._family.names() if name != _REDIS]
        await self._family.stop(others)
        await self._family.stop(timeout_s=_REDIS_STOP_S)

    def _forget_worker(self, spec: ChildSpec, pid: int) -> None:
        if spec.role:
            try:
                self._store.workers.forget(worker_id(spec.role, pid))
            except SQLAlchemyError as error:  # a full disk; the row is stale in some seconds
                self._say(f"note: the row of a {spec.name} that ended stays: {error.args[0]}")
