"""Whether a request is within a model's limits, said in words the caller can act on."""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, get_args

from video_engine.errors import InvalidVideoRequest
from video_engine.picture import canvas_step
from video_engine.types import Fit

if TYPE_CHECKING:
    from video_engine.types import VideoLimits, VideoRequest

MAX_ASPECT_RATIO = 8.0
MAX_SEED = 2**63 - 1
MAX_GUIDANCE_SCALE = 30.0


def check_request(request: VideoRequest, limits: VideoLimits) -> None:
    """Return if the request can be rendered.

    Raises: InvalidVideoRequest naming the field, its value, the bound and the way out.
    """
    _check_picture(request)
    _check_texts(request, limits)
    _check_size(request, limits)
    _check_frames(request, limits)
    _check_whole("steps", request.steps, limits.min_steps, limits.max_steps)
    _check_whole("seed", request.seed, 0, MAX_SEED)
    _check_guidance(request, limits)


def _check_picture(request: VideoRequest) -> None:
    try:
        request.image.load()
    except (OSError, SyntaxError) as error:  # what Pillow raises for truncated or broken files
        raise InvalidVideoRequest(
            f"image cannot be read ({error}): give a complete picture file", param="image"
        ) from error
    width, height = request.image.size
    if min(width, height) < 1:
        raise InvalidVideoRequest(
            f"image is {width}x{height}; give a picture with at least one pixel", param="image"
        )
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise InvalidVideoRequest(
            f"image is {width}x{height}; its longer side may be at most {MAX_ASPECT_RATIO:g} times "
            "the shorter one: crop it first",
            param="image",
        )
    if request.fit not in get_args(Fit):
        raise InvalidVideoRequest(
            f"fit is {request.fit!r}; use one of {', '.join(get_args(Fit))}", param="fit"
        )


def _check_texts(request: VideoRequest, limits: VideoLimits) -> None:
    for param, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
        if len(text) > limits.max_prompt_chars:
            raise InvalidVideoRequest(
                f"{param} has {len(text)} characters; the model reads at most "
                f"{limits.max_prompt_chars}: shorten it",
                param=param,
            )
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidVideoRequest(
                f"{param} holds half of a surrogate pair, which is not a character: remove it",
                param=param,
            )
    if request.negative_prompt and not limits.has_negative_prompt:
        raise InvalidVideoRequest(
            f"negative_prompt is {request.negative_prompt!r}; this model has none: leave it out",
            param="negative_prompt",
        )


def _check_size(request: VideoRequest, limits: VideoLimits) -> None:
    step = canvas_step(limits)
    for param, side in (("width", request.width), ("height", request.height)):
        _check_whole(param, side, limits.min_side, limits.max_side)
        if side % step:
            below = max(side // step * step, -(-limits.min_side // step) * step)
            above = min(-(-side // step) * step, limits.max_side // step * step)
            ways = " or ".join(str(way) for way in sorted({below, above}))
            raise InvalidVideoRequest(
                f"{param} {side} is not a multiple of {step}: use {ways}", param=param
            )
    if request.width * request.height > limits.max_area:
        scale = math.sqrt(limits.max_area / (request.width * request.height))
        raise InvalidVideoRequest(
            f"{request.width}x{request.height} has {request.width * request.height} pixels; the "
            f"model makes at most {limits.max_area}: scale both sides by {scale:.2f} or less",
            param="width",
        )


def _check_frames(request: VideoRequest, limits: VideoLimits) -> None:
    _check_whole("num_frames", request.num_frames, limits.min_frames, limits.max_frames)
    if (request.num_frames - limits.frame_offset) % limits.frame_step:
        nearest = limits.nearest_frames(request.num_frames, 1.0)
        raise InvalidVideoRequest(
            f"num_frames {request.num_frames} is not {limits.frame_step} * k + "
            f"{limits.frame_offset}: use {nearest}",
            param="num_frames",
        )
    if not limits.min_fps <= request.fps <= limits.max_fps:  # NaN fails too
        raise InvalidVideoRequest(
            f"fps {request.fps:g} is outside {limits.min_fps:g} to {limits.max_fps:g}: use "
            f"{limits.default_fps:g}",
            param="fps",
        )


def _check_guidance(request: VideoRequest, limits: VideoLimits) -> None:
    scale = request.guidance_scale
    if scale is None:
        return
    if limits.default_guidance_scale is None:
        raise InvalidVideoRequest(
            f"guidance_scale is {scale:g}, but this model has no guidance: leave it out",
            param="guidance_scale",
        )
    if not 0.0 <= scale <= MAX_GUIDANCE_SCALE:
        raise InvalidVideoRequest(
            f"guidance_scale {scale:g} is outside 0 to {MAX_GUIDANCE_SCALE:g}: use "
            f"{limits.default_guidance_scale:g}, or leave it out",
            param="guidance_scale",
        )


def _check_whole(param: str, value: int, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidVideoRequest(f"{param} {value!r} is not a whole number", param=param)
    if not lowest <= value <= highest:
        nearest = min(max(value, lowest), highest)
        raise InvalidVideoRequest(
            f"{param} {value} is outside {lowest} to {highest}: use {nearest}", param=param
        )
