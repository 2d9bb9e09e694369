"""What every value on the wire has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Frozen, and strict about fields that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)
