"""What a caller sends to make a clip, as JSON or as a form."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from service.errors import BadRequest, shown
from service.http.json_values import as_list, as_object
from service.video.request import ClipChoices
from workers.protocol import JobKind, JobLabels

REMIX_TAG = "remix-of:"
MAX_TAGS = 16
_SIZE = re.compile(r"(\d{1,6})\s*[xX×]\s*(\d{1,6})")


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return None if value == "" else value


def _split_tags(value: object) -> object:
    tags = [value] if isinstance(value, str) else as_list(value)
    if tags is None or not all(isinstance(tag, str) for tag in tags):
        return value
    flat = [part.strip() for tag in tags for part in str(tag).split(",")]
    return list(dict.fromkeys(part for part in flat if part))


def _blank_is_none(value: object) -> object:
    return None if value == "" else value


_Float = Annotated[float | None, BeforeValidator(_no_bool)]
_Int = Annotated[int | None, BeforeValidator(_no_bool)]
_Label = Annotated[str, Field(max_length=128)]
_Tag = Annotated[str, Field(min_length=1, max_length=64)]


class SubmissionBody(BaseModel):
    """An image-to-video job: the picture, the words, and choices that have defaults.

    Units: `seconds` of clip, `fps` frames per second, sides in pixels.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: JobKind = JobKind.IMAGE_TO_VIDEO
    model: Annotated[str | None, BeforeValidator(_blank_is_none)] = Field(
        default=None, max_length=256, description="Default: the deployment's video model."
    )
    image: str | None = Field(
        default=None, description="A file id, or a data: URL; in a form also a file part."
    )
    prompt: str
    negative_prompt: str = ""
    seconds: _Float = None
    fps: _Float = None
    size: Annotated[str | None, BeforeValidator(_blank_is_none)] = Field(
        default=None, description="WIDTHxHEIGHT; default: the picture's proportions."
    )
    width: _Int = None
    height: _Int = None
    fit: Literal["crop", "pad"] = "crop"
    seed: _Int = Field(default=None, description="Default: drawn, and shown in the answer.")
    steps: _Int = None
    guidance_scale: _Float = None
    save_frames: bool = False
    priority: Annotated[int, BeforeValidator(_no_bool)] = Field(
        default=0, ge=-100, le=100, description="A smaller one runs sooner, as with chats."
    )
    project: _Label = ""
    shot: _Label = ""
    tags: Annotated[list[_Tag], BeforeValidator(_split_tags)] = Field(
        default_factory=list[str], max_length=MAX_TAGS
    )
    webhook_url: Annotated[str | None, BeforeValidator(_blank_is_none)] = Field(
        default=None, max_length=2048
    )

    @field_validator("*")
    @classmethod
    def _has_no_nul(cls, value: Any) -> Any:  # noqa: ANN401 - any field
        texts = as_list(value) or [value]
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise ValueError("must not hold a NUL character")
        return value

    @field_validator("tags")
    @classmethod
    def _keeps_reserved_tags(cls, tags: list[str]) -> list[str]:
        if any(tag.startswith(REMIX_TAG) for tag in tags):
            raise ValueError(f"tags that begin with {REMIX_TAG} are set by the service")
        return tags

    @model_validator(mode="before")
    @classmethod
    def _reads_size(cls, values: Any) -> Any:  # noqa: ANN401 - anything may be sent
        fields = as_object(values)
        size = None if fields is None else fields.get("size")
        if fields is None or not isinstance(size, str) or size == "":
            return values
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            text = f"size is {shown(size)}; write it as WIDTHxHEIGHT, like 640x480."
            raise BadRequest(text, param="size")
        if any(fields.get(name) not in (None, "") for name in ("width", "height")):
            return values
        return {**fields, "width": int(match.group(1)), "height": int(match.group(2))}

    @model_validator(mode="after")
    def _size_is_clear(self) -> SubmissionBody:
        match = _SIZE.fullmatch((self.size or "").strip())
        sides = (self.width, self.height)
        if match is not None and (int(match.group(1)), int(match.group(2))) != sides:
            text = f"size {self.size} and {self.width}x{self.height} differ; give only one."
            raise BadRequest(text, param="size")
        return self

    def choices(self) -> ClipChoices:
        """What decides the pixels."""
        return ClipChoices.model_validate(
            self.model_dump(include=set(ClipChoices.model_fields)), strict=False
        )

    def labels(self, *more_tags: str) -> JobLabels:
        """What people find the job by."""
        return JobLabels(
            priority=self.priority,
            project=self.project,
            shot=self.shot,
            tags=(*self.tags, *more_tags),
            webhook_url=self.webhook_url,
        )
