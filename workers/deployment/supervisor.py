"""The supervisor: checks what must hold before anything starts, then runs the deployment."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

from workers.deployment.family import Refused
from workers.deployment.redis_server import plan_redis
from workers.deployment.run import Commands, Deployment
from workers.deployment.start_checks import (
    StartRefused,
    check_devices,
    check_exposure,
    free_port,
    instance_lock,
)
from workers.errors import LanewiseError
from workers.store import open_store

if TYPE_CHECKING:
    from workers.settings import Settings

__all__ = ["Commands", "Supervisor"]


class Supervisor:
    """Starts everything in order, keeps it running, and stops all of it.

    Invariants: one supervisor per data folder; no child outlives it; a child that ends is started
    again, and one that ends too often ends the deployment with its reason.
    """

    def __init__(
        self, settings: Settings, *, commands: Commands | None = None, out: TextIO | None = None
    ) -> None:
        """Tell people what happens on `out`, standard output by default."""
        self._settings = settings
        self._commands = commands or Commands()
        self._out = out or sys.stdout

    def run(self) -> int:
        """Run until SIGTERM or SIGINT; the exit code.

        0 stopped, 2 wrong settings, 3 below the strict floor, 4 does not fit, 1 otherwise.
        """
        try:
            with ExitStack() as stack:
                return self._run(stack)
        except (StartRefused, Refused) as refusal:
            self._say(f"cannot start: {refusal}")
            return refusal.exit_code
        except LanewiseError as error:
            self._say(f"stopped: {error}")
            return 1

    def _run(self, stack: ExitStack) -> int:
        given = self._settings
        check_devices(given)
        stack.enter_context(instance_lock(given.resolved_data_dir))
        port = free_port(given.host, given.port)
        store = stack.enter_context(
            open_store(given.resolved_database_url, given.resolved_artifact_url)
        )
        check_exposure(given, store.keys.count_active())
        plan = plan_redis(given)
        settings = given.model_copy(
            update={"port": port, "redis_url": plan.url, "supervisor_pid": os.getpid()}
        )

        async def main() -> int:
            return await Deployment(settings, plan, store, self._commands, self._say).run()

        return asyncio.run(main())

    def _say(self, text: str) -> None:
        self._out.write(f"lanewise: {text}\n")
        self._out.flush()
