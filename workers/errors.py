"""Errors of the package `workers`.

LanewiseError
├── NoWorker                  no living worker serves the model
├── StorageFull               no room is left on a disk or in the database
├── GroupLost                 the ranks of an engine cannot be brought together again
└── StoreError                what the store refuses
    ├── NotFound              no such row, or a row of another key (never told apart)
    │   ├── JobNotFound
    │   ├── FileNotFound
    │   ├── BatchNotFound
    │   └── KeyNotFound
    ├── JobNotRetryable       only failed, cancelled and dead jobs can run again
    ├── FileInUse             a job that has not ended starts from the file
    ├── QueueFull             the bound on queued jobs is reached
    ├── IdempotencyMismatch   the key was used with another body
    ├── InvalidText           a text that no database can keep
    ├── InvalidPath           an artifact path that leaves its folder
    └── StoreUnusable         the database cannot be opened or is of a newer version
"""

from __future__ import annotations


class LanewiseError(Exception):
    """Root of everything that this package raises on purpose."""


class NoWorker(LanewiseError):
    """No living worker serves the model."""

    def __init__(self, model: str) -> None:
        """Remember the model."""
        super().__init__(f"no worker serves the model {model!r} at the moment; try again later")
        self.model = model


class StorageFull(LanewiseError):
    """No room is left on a disk or in the database that the service writes to."""

    def __init__(self) -> None:
        """Say what is to be done."""
        super().__init__(
            "The service's disk or database is full: free some room there, then send this again."
        )


class GroupLost(LanewiseError):
    """The ranks of an engine are gone and may not be started again; the message says why."""


class StoreError(LanewiseError, ValueError):
    """The store refuses; the message names the value, the bound and the way out."""


class NotFound(StoreError):
    """No such row for this key; `kind` says of what and `id` which."""

    kind = "row"

    def __init__(self, row_id: str) -> None:
        """Remember `row_id` and say it in the message."""
        super().__init__(f"No {self.kind} has the id {row_id!r}.")
        self.id = row_id


class JobNotFound(NotFound):
    """No such job, or it belongs to another key."""

    kind = "job"


class FileNotFound(NotFound):
    """No such file, or it belongs to another key."""

    kind = "file"


class BatchNotFound(NotFound):
    """No such batch, or it belongs to another key."""

    kind = "batch"


class KeyNotFound(NotFound):
    """No such API key."""

    kind = "API key"


class JobNotRetryable(StoreError):
    """The job is not failed, cancelled or dead."""

    def __init__(self, job_id: str, status: str) -> None:
        """Remember the job and the status that forbids the retry."""
        super().__init__(
            f"Job {job_id} is {status}; only a failed, cancelled or dead job can be retried."
        )
        self.id = job_id
        self.status = status


class FileInUse(StoreError):
    """A job that has not ended starts from the file."""

    def __init__(self, file_id: str, job_id: str) -> None:
        """Remember the file and the job that needs it."""
        super().__init__(
            f"File {file_id} is needed by job {job_id}, which has not ended; cancel the job, or "
            "delete the file later."
        )
        self.id = file_id
        self.job_id = job_id


class QueueFull(StoreError):
    """More jobs would wait than `bound` allows."""

    def __init__(self, num_queued: int, num_more: int, bound: int) -> None:
        """Say how many wait, how many were to be added, and the bound."""
        super().__init__(
            f"{num_queued} jobs are queued and {num_more} more would exceed the bound of {bound}; "
            "try again when some have finished."
        )
        self.num_queued = num_queued
        self.bound = bound


class IdempotencyMismatch(StoreError):
    """The idempotency key was used before, with another request body."""

    def __init__(self, key: str) -> None:
        """Remember the key."""
        super().__init__(
            f"The idempotency key {key!r} was used with another request; use a fresh key."
        )
        self.key = key


class InvalidText(StoreError):
    """A text that no database can keep, such as one with a NUL character."""

    def __init__(self, field: str, reason: str) -> None:
        """Remember the name of the field and say what is wrong with its text."""
        super().__init__(f"{field} {reason}.")
        self.field = field


class InvalidPath(StoreError):
    """An artifact path is empty, absolute or leaves the store."""

    def __init__(self, path: str) -> None:
        """Remember the path."""
        super().__init__(f"{path!r} is no path inside the artifact store.")
        self.path = path


class StoreUnusable(StoreError):
    """The database cannot be opened; the message says why and what to do."""
