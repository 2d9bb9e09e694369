"""What the bodies of generation requests keep to: strict types, whole characters, names."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from service.http.json_values import has_lone_surrogate

# Of a function or a schema, as at OpenAI.
NAME = r"^[A-Za-z0-9_-]{1,64}$"


def _whole_characters(text: str) -> str:
    if has_lone_surrogate(text):
        raise ValueError("holds half a character (a lone surrogate)")
    return text


Text = Annotated[str, AfterValidator(_whole_characters)]


class Body(BaseModel):
    """Strict types and finite numbers; fields that are not known are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")
