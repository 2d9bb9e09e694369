"""Bodies about uploaded files, in OpenAI's shape."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from workers.store.files import StoredFile

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data"]


class FileBody(BaseModel):
    """The text fields of an upload; the bytes are the file part `file`."""

    model_config = ConfigDict(extra="ignore")

    purpose: Purpose = Field(description="Pictures for clips are `vision`.")


class FileView(BaseModel):
    """A stored file. `width` and `height` are those of a picture, after EXIF rotation."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    media_type: str
    sha256: str
    width: int | None
    height: int | None


class FileList(BaseModel):
    """One page of files."""

    object: Literal["list"] = "list"
    data: list[FileView]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """A file is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def file_view(stored: StoredFile) -> FileView:
    """A file as callers see it."""
    return FileView(
        id=stored.id,
        bytes=stored.bytes,
        created_at=int(stored.created_at.timestamp()),
        filename=stored.name,
        purpose=stored.purpose,
        media_type=stored.media_type,
        sha256=stored.sha256,
        width=stored.width,
        height=stored.height,
    )
