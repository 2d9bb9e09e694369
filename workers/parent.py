"""Ties a child process to its parent: it never outlives the supervisor that started it."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

_logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0
_GRACE_S = 35.0


def parent_death_signal() -> Callable[[], None]:
    """A function to call between fork and exec: the child gets SIGTERM when its parent dies.

    Elsewhere than on Linux it does nothing, and `watch_parent` does the work.
    """
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    For a process that has nothing to bring to an end; unlike SIGTERM it also ends a stopped one.
    Elsewhere than on Linux only `os.getppid` tells. Exits at once if the parent is gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def watch_parent(parent_pid: int) -> None:
    """End this process when `parent_pid` is no longer its parent; 0 watches nothing.

    First SIGTERM, so that it may drain; after 35 s the hard way.
    """
    if parent_pid:
        threading.Thread(
            target=_watch, args=(parent_pid,), name="parent-watch", daemon=True
        ).start()


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_LOOK_S)
    _logger.warning("the supervisor (pid %d) is gone; stopping", parent_pid)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os._exit(1)
