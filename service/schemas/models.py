"""Answers about models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ModelView(BaseModel):
    """A model in OpenAI's shape, with what its worker says about itself.

    `state` is loading, idle, busy, failed, lost (not heard of) or absent (never heard of).
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "lanewise"
    role: Literal["llm", "video"]
    state: str
    parent: str | None = None
    devices: str = ""
    source: str = ""
    error: str | None = None
    limits: dict[str, Any] | None = None
    card: dict[str, Any] = Field(default_factory=dict[str, Any])


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelView]
