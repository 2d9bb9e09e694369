"""What is checked before anything starts: one instance, a free port, devices, exposure, a key."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from workers.errors import LanewiseError
from workers.settings import parse_device_set

if TYPE_CHECKING:
    from workers.settings import Settings
    from workers.store.keys import KeyStore

KEY_FILE = "first-key.txt"
_ADMIN_SCOPES = ("admin", "chat", "video", "read")


class StartRefused(LanewiseError):
    """The deployment must not or cannot start; the message says the way out."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def instance_lock(data_dir: Path) -> Generator[None]:
    """Hold the data folder for this process.

    Raises: StartRefused naming the process that holds it.
    """
    path = data_dir / "run" / "supervisor.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            pid = stream.read().strip() or "unknown"
            raise StartRefused(
                f"lanewise already runs on {data_dir} (pid {pid}); stop it, or give this "
                "one its own --data (LANEWISE_DATA_DIR)"
            ) from error
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def check_devices(settings: Settings) -> None:
    """Refuse device sets that share a device.

    Raises: StartRefused naming the shared devices.
    """
    if "none" in (settings.llm_model, settings.video_model):
        return
    llm, video = parse_device_set(settings.llm_devices), parse_device_set(settings.video_devices)
    shared = sorted(set(llm) & set(video))
    if shared:
        raise StartRefused(
            f"llm_devices {settings.llm_devices} and video_devices {settings.video_devices} share "
            f"{', '.join(map(str, shared))}; give each device to one of them",
            exit_code=2,
        )


def device_environment(devices: str) -> dict[str, str]:
    """The variables that show a worker its devices only; the empty set hides them all."""
    numbers = ",".join(map(str, parse_device_set(devices))) or "-1"
    return {"CUDA_VISIBLE_DEVICES": numbers, "HIP_VISIBLE_DEVICES": numbers}


def free_port(host: str, port: int) -> int:
    """The port to listen on; 0 gives one that is free now.

    Raises: StartRefused when it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartRefused(
                f"port {port} of {host} cannot be used ({error.strerror}); stop what listens "
                "there, or choose another with LANEWISE_PORT"
            ) from error
        return int(probe.getsockname()[1])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings, num_keys: int) -> None:
    """Refuse to listen beyond this machine without a key.

    Raises: StartRefused with the way out.
    """
    if is_loopback(settings.host):
        return
    if settings.auth == "off":
        raise StartRefused(
            f"host {settings.host} is reachable from other machines, and auth is off; set "
            "LANEWISE_AUTH=on and make a key: lanewise keys create",
            exit_code=2,
        )
    if num_keys == 0:
        raise StartRefused(
            f"host {settings.host} is reachable from other machines, and no key exists yet; make "
            "one first: lanewise keys create",
            exit_code=2,
        )


def make_first_key(keys: KeyStore, data_dir: Path) -> str | None:
    """The secret of a first admin key, also kept in a private file; None when a key exists."""
    if keys.count_active() > 0:
        return None
    _, secret = keys.create("first key", _ADMIN_SCOPES)
    path = data_dir / KEY_FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(f"{secret}\n")
    return secret
