"""Bodies about API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Scope = Literal["chat", "video", "read", "admin"]


class KeyBody(BaseModel):
    """What a new key is called and may do."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    scopes: list[Scope] = Field(default=["chat", "video", "read"], min_length=1, max_length=8)


class KeyView(BaseModel):
    """A key without its secret."""

    id: str
    object: Literal["key"] = "key"
    name: str
    prefix: str
    scopes: list[str]
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewKeyView(KeyView):
    """A key at its making: the only time its secret is shown."""

    secret: str


class KeyList(BaseModel):
    """All keys."""

    object: Literal["list"] = "list"
    data: list[KeyView]
