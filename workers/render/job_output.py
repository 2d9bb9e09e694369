"""What a job leaves behind: descriptions of its files, or of its failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import PurePosixPath

from sqlalchemy.exc import SQLAlchemyError

from video_engine.errors import InvalidVideoRequest
from workers.errors import NotFound
from workers.protocol import JobError

_MEDIA_TYPES = {
    ".mp4": "video/mp4",
    ".png": "image/png",
    ".webp": "image/webp",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".zip": "application/zip",
}
_MAX_MESSAGE_CHARS = 500
_NUM_TRIES = 5
_PAUSE_S = 1.0


def media_type_of(name: str) -> str:
    """The media type of an output file."""
    return _MEDIA_TYPES.get(PurePosixPath(name).suffix, "application/octet-stream")


def failure_of(error: Exception) -> JobError:
    """The code and the short message that the caller sees; the traceback stays in the log."""
    if isinstance(error, (InvalidVideoRequest, NotFound)):
        code = "invalid_request"
    elif _is_out_of_memory(error):
        code = "out_of_memory"
    else:
        code = "engine_error"
    text = str(error).strip().split("\n", 1)[0] or type(error).__name__
    if code == "engine_error":
        text = f"{type(error).__name__}: {text}"
    return JobError(code=code, message=text[:_MAX_MESSAGE_CHARS])


def retry_on_database_trouble(write: Callable[[], bool]) -> bool:
    """Call `write`; a database that is away for a few seconds does not cost a finished job.

    Raises: SQLAlchemyError from the last try.
    """
    for _ in range(_NUM_TRIES - 1):
        try:
            return write()
        except SQLAlchemyError:
            time.sleep(_PAUSE_S)
    return write()


def _is_out_of_memory(error: Exception) -> bool:
    """Python's and torch's own errors; torch on the CPU raises a plain RuntimeError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )
