"""From what a caller asked for to a job with every choice made. Free of FastAPI.

The size rule is the engine's: the picture's own proportions at the model's default area, sides
multiples of the model's step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from service.errors import FieldError
from workers.protocol import VideoJobRequest, VideoLimits

MAX_SEED = 2**63 - 1
MAX_GUIDANCE_SCALE = 30.0


class ClipChoices(BaseModel):
    """What a caller may choose about a clip; None leaves it to the model."""

    model_config = ConfigDict(frozen=True)

    prompt: str
    negative_prompt: str = ""
    seconds: float | None = None
    fps: float | None = None
    width: int | None = None
    height: int | None = None
    fit: Literal["crop", "pad"] = "crop"
    seed: int | None = None
    steps: int | None = None
    guidance_scale: float | None = None
    save_frames: bool = False


class InputImage(BaseModel):
    """The stored picture that a clip starts from."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    width: int
    height: int


def resolve(
    choices: ClipChoices,
    image: InputImage,
    *,
    model: str,
    limits: VideoLimits,
    draw_seed: Callable[[], int],
) -> VideoJobRequest:
    """The job to store: retried or repeated, it renders the same pixels.

    Raises: FieldError naming the field, its value, the bound and the nearest legal value.
    """
    problems = find_problems(choices, limits)
    if problems:
        raise problems[0]
    width, height = _size(choices, image, limits)
    guidance = choices.guidance_scale
    return VideoJobRequest(
        model=model,
        image=image.id,
        image_name=image.name,
        prompt=choices.prompt,
        negative_prompt=choices.negative_prompt,
        seconds=_or(choices.seconds, limits.default_seconds),
        fps=_or(choices.fps, limits.default_fps),
        width=width,
        height=height,
        fit=choices.fit,
        seed=draw_seed() if choices.seed is None else choices.seed,
        steps=limits.default_steps if choices.steps is None else choices.steps,
        guidance_scale=limits.default_guidance_scale if guidance is None else guidance,
        save_frames=choices.save_frames,
    )


def find_problems(choices: ClipChoices, limits: VideoLimits) -> list[FieldError]:
    """Everything about the choices that the model cannot do."""
    checks = (
        check_texts(choices.prompt, choices.negative_prompt, limits),
        _check_size(choices, limits),
        _check_time(choices, limits),
        _check_numbers(choices, limits),
    )
    return [problem for check in checks for problem in check]


def check_texts(prompt: str, negative_prompt: str, limits: VideoLimits) -> list[FieldError]:
    """What is wrong with the words of a clip."""
    problems: list[FieldError] = []
    if not prompt.strip():
        problems.append(FieldError("prompt", "prompt is empty; say how the picture should move."))
    bound = limits.max_prompt_chars
    for param, text in (("prompt", prompt), ("negative_prompt", negative_prompt)):
        if len(text) > bound:
            found = f"{param} has {len(text)} characters; the model reads at most {bound}."
            problems.append(FieldError(param, found))
    if negative_prompt and not limits.has_negative_prompt:
        text = "This model takes no negative_prompt; leave it out."
        problems.append(FieldError("negative_prompt", text))
    return problems


def default_size(image: InputImage, limits: VideoLimits) -> tuple[int, int]:
    """The legal (width, height) nearest to the picture's proportions at the default area."""
    step = side_step(limits)
    scale = math.sqrt(limits.default_area / (image.width * image.height))
    lowest, highest = -(-limits.min_side // step), limits.max_side // step
    width = step * min(max(round(image.width * scale / step), lowest), highest)
    height = step * min(max(round(image.height * scale / step), lowest), highest)
    while width * height > limits.max_area:
        if width >= height:
            width -= step
        else:
            height -= step
    return width, height


def side_step(limits: VideoLimits) -> int:
    """The multiple a side must be of: the model's, and even (video halves its colours)."""
    return math.lcm(limits.side_multiple, 2)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _size(choices: ClipChoices, image: InputImage, limits: VideoLimits) -> tuple[int, int]:
    if choices.width is None or choices.height is None:
        return default_size(image, limits)
    return choices.width, choices.height


def _check_size(choices: ClipChoices, limits: VideoLimits) -> list[FieldError]:
    width, height = choices.width, choices.height
    if width is None and height is None:
        return []
    if width is None or height is None:
        missing = "width" if width is None else "height"
        return [FieldError(missing, f"{missing} is missing; give width and height, or neither.")]
    problems = [
        problem
        for param, side in (("width", width), ("height", height))
        if (problem := _side_problem(param, side, limits)) is not None
    ]
    if not problems and width * height > limits.max_area:
        step, scale = side_step(limits), math.sqrt(limits.max_area / (width * height))
        smaller = f"{int(width * scale) // step * step}x{int(height * scale) // step * step}"
        text = (
            f"size {width}x{height} has {width * height} pixels; the model makes at most "
            f"{limits.max_area}: use {smaller} or less."
        )
        problems.append(FieldError("size", text))
    return problems


def _side_problem(param: str, side: int, limits: VideoLimits) -> FieldError | None:
    step = side_step(limits)
    lowest, highest = -(-limits.min_side // step) * step, limits.max_side // step * step
    if not lowest <= side <= highest:
        nearest = min(max(side, lowest), highest)
        return FieldError(
            param, f"{param} is {side}, outside {lowest} to {highest}: use {nearest}."
        )
    if side % step:
        below, above = side // step * step, -(-side // step) * step
        return FieldError(
            param, f"{param} is {side}, not a multiple of {step}: use {below} or {above}."
        )
    return None


def _check_time(choices: ClipChoices, limits: VideoLimits) -> list[FieldError]:
    fps = _or(choices.fps, limits.default_fps)
    if not limits.min_fps <= fps <= limits.max_fps:
        nearest = min(max(fps, limits.min_fps), limits.max_fps)
        return [_outside("fps", fps, limits.min_fps, limits.max_fps, nearest)]
    seconds = _or(choices.seconds, limits.default_seconds)
    if limits.min_frames - 0.5 <= seconds * fps <= limits.max_frames + 0.5:
        return []
    shortest, longest = limits.min_frames / fps, limits.max_frames / fps
    nearest = min(max(seconds, shortest), longest)
    return [
        FieldError(
            "seconds",
            f"seconds is {seconds:g}, which at {fps:g} fps is {seconds * fps:g} frames; the model "
            f"makes {limits.min_frames} to {limits.max_frames}, that is {shortest:.3g} to "
            f"{longest:.3g} seconds: use {nearest:.3g}, or another fps.",
        )
    ]


def _check_numbers(choices: ClipChoices, limits: VideoLimits) -> list[FieldError]:
    problems: list[FieldError] = []
    steps, seed, scale = choices.steps, choices.seed, choices.guidance_scale
    if steps is not None and not limits.min_steps <= steps <= limits.max_steps:
        nearest = min(max(steps, limits.min_steps), limits.max_steps)
        problems.append(_outside("steps", steps, limits.min_steps, limits.max_steps, nearest))
    if seed is not None and not 0 <= seed <= MAX_SEED:
        text = f"seed is {seed}, outside 0 to {MAX_SEED}: use {min(max(seed, 0), MAX_SEED)}."
        problems.append(FieldError("seed", text))
    if scale is None:
        return problems
    if limits.default_guidance_scale is None:
        text = "This model has no guidance; leave guidance_scale out."
        problems.append(FieldError("guidance_scale", text))
    elif not 0.0 <= scale <= MAX_GUIDANCE_SCALE:
        nearest = min(max(scale, 0.0), MAX_GUIDANCE_SCALE)
        problems.append(_outside("guidance_scale", scale, 0.0, MAX_GUIDANCE_SCALE, nearest))
    return problems


def _outside(param: str, value: float, low: float, high: float, nearest: float) -> FieldError:
    return FieldError(param, f"{param} is {value:g}, outside {low:g} to {high:g}: use {nearest:g}.")
