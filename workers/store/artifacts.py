"""Files that jobs read and write, on any file system that fsspec knows.

A path is either absent or complete: local files are written to a temporary name, flushed to the
disk and renamed; object stores make an upload visible as a whole by themselves.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import fsspec.core  # pyright: ignore[reportMissingTypeStubs]
from fsspec.implementations.local import (  # pyright: ignore[reportMissingTypeStubs]
    LocalFileSystem,
)

from workers.errors import InvalidPath

_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """What was written: its path, size and hash."""

    path: str
    bytes: int
    sha256: str


def job_path(job_id: str, attempt: int, name: str) -> str:
    """Where attempt `attempt` of a job keeps its output `name`; a stale worker writes elsewhere."""
    return f"{job_folder(job_id)}/{attempt}/{name}"


def job_folder(job_id: str) -> str:
    """The folder of all attempts of a job."""
    return f"jobs/{job_id}"


def input_path(sha256: str) -> str:
    """Where an uploaded file lives, found by the hash of its bytes."""
    return f"files/{sha256}"


class ArtifactStore:
    """Named blobs under one folder or bucket; safe to share among threads.

    Invariants: names are relative and stay inside; a reader never sees half a file.
    """

    def __init__(self, url: str) -> None:
        """Open the folder or bucket at `url`: a path, or an fsspec URL such as `s3://bucket/x`."""
        url_to_fs = cast("Any", fsspec.core).url_to_fs
        self._fs, root = url_to_fs(url)
        self._root = str(root).rstrip("/")
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def write_file(self, local: Path, path: str) -> Stored:
        """Copy the file `local` to `path`, replacing what was there.

        Raises:
            InvalidPath: `path` leaves the store.
        """
        with local.open("rb") as source:
            return self._write(source, path)

    def write_bytes(self, content: bytes, path: str) -> Stored:
        """Write `content` to `path`, replacing what was there.

        Raises:
            InvalidPath: `path` leaves the store.
        """
        return self._write(BytesIO(content), path)

    def open(self, path: str) -> BinaryIO:
        """A seekable reader.

        Raises:
            InvalidPath: `path` leaves the store.
            FileNotFoundError: nothing is there.
        """
        return cast("BinaryIO", self._fs.open(self._full(path), "rb"))

    def size(self, path: str) -> int:
        """Bytes at `path`.

        Raises:
            InvalidPath: `path` leaves the store.
            FileNotFoundError: nothing is there.
        """
        return int(self._fs.info(self._full(path))["size"])

    def exists(self, path: str) -> bool:
        """Whether something is at `path`."""
        return bool(self._fs.exists(self._full(path)))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files, and folders with all that is in them; absent ones are no error."""
        for path in paths:
            full = self._full(path)
            try:
                self._fs.rm(full, recursive=True)
            except FileNotFoundError:
                continue

    def _write(self, source: BinaryIO, path: str) -> Stored:
        full = self._full(path)
        self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
        if not self._is_local:
            with self._fs.open(full, "wb") as target:
                size, sha256 = _copy(source, target)
            return Stored(path, size, sha256)
        temporary = Path(f"{full}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("wb") as target:
                size, sha256 = _copy(source, target)
                target.flush()
                os.fsync(target.fileno())
            temporary.replace(full)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(temporary.parent)
        return Stored(path, size, sha256)

    def _full(self, path: str) -> str:
        parts = PurePosixPath(path).parts
        if not parts or "\0" in path or "\\" in path or ".." in parts or parts[0] == "/":
            raise InvalidPath(path)
        return f"{self._root}/{'/'.join(parts)}"


def _copy(source: BinaryIO, target: BinaryIO) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        target.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
