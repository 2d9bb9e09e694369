"""The recipe of a clip: what a second render needs to come out the same."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from importlib import metadata
from typing import TYPE_CHECKING, Any

from video_engine.errors import InvalidVideoRequest
from video_engine.picture import picture_sha256
from video_engine.types import VideoRequest

if TYPE_CHECKING:
    from PIL import Image

    from video_engine.models.base import VideoModel

SCHEMA = "lanewise.video.recipe"
SCHEMA_VERSION = 1
_REQUEST_FIELDS = (
    "prompt",
    "negative_prompt",
    "width",
    "height",
    "num_frames",
    "fps",
    "steps",
    "seed",
    "fit",
    "guidance_scale",
)


def make_recipe(request: VideoRequest, model: VideoModel) -> dict[str, Any]:
    """Everything a re-render needs besides the picture itself, as plain JSON values."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in _REQUEST_FIELDS}
    if request.guidance_scale is None:
        fields["guidance_scale"] = model.limits.default_guidance_scale
    fields["image_sha256"] = picture_sha256(request.image)
    rate = rational_fps(request.fps)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "model": {"name": model.name, "source": model.source, **model.recipe()},
        "request": fields,
        "fps_rational": f"{rate.numerator}/{rate.denominator}",
        "versions": _versions(),
    }


def request_from_recipe(recipe: Mapping[str, Any], image: Image.Image) -> VideoRequest:
    """The request that a recipe recorded, with its picture put back in.

    Raises: InvalidVideoRequest if the recipe is of another kind or the picture another one.
    """
    if recipe.get("schema") != SCHEMA or recipe.get("schema_version") != SCHEMA_VERSION:
        raise InvalidVideoRequest(
            f"the recipe says {recipe.get('schema')!r} version {recipe.get('schema_version')!r}; "
            f"this engine reads {SCHEMA!r} version {SCHEMA_VERSION}",
            param="recipe",
        )
    fields = recipe["request"]
    found = picture_sha256(image)
    if found != fields["image_sha256"]:
        raise InvalidVideoRequest(
            f"the picture's SHA-256 is {found}, the recipe was made from "
            f"{fields['image_sha256']}: give the original picture",
            param="image",
        )
    return VideoRequest(image=image, **{name: fields[name] for name in _REQUEST_FIELDS})


def rational_fps(fps: float) -> Fraction:
    """The exact rate meant by a decimal one: 23.976 is 24000/1001, 25 is 25/1.

    Rates within 0.001 of an NTSC rate k * 1000/1001 are taken for it.
    """
    if float(fps).is_integer():
        return Fraction(int(fps))
    ntsc = Fraction(round(fps * 1.001) * 1000, 1001)
    if ntsc and abs(float(ntsc) - fps) < 1e-3:
        return ntsc
    return Fraction(fps).limit_denominator(1001)


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in ("lanewise", "torch", "diffusers", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
