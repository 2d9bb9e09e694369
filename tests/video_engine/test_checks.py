"""Limits and the refusals that name field, value, bound and way out."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from video_engine.checks import check_request
from video_engine.config import EngineConfig
from video_engine.errors import InvalidVideoRequest
from video_engine.types import VideoLimits, VideoRequest

LIMITS = VideoLimits(
    min_side=64, max_side=512, side_multiple=16, max_area=512 * 384, default_area=256 * 256,
    min_frames=5, max_frames=81, frame_step=4, frame_offset=1, default_fps=16.0, min_fps=1.0,
    max_fps=60.0, default_seconds=5.0, default_steps=40, min_steps=1, max_steps=100,
    max_prompt_chars=200, default_guidance_scale=5.0, has_negative_prompt=True,
)  # fmt: skip
REQUEST = VideoRequest(
    image=Image.new("RGB", (64, 64)), prompt="a boat", width=256, height=128, num_frames=17,
    fps=16.0, steps=10, seed=0,
)  # fmt: skip


def truncated_jpeg() -> Image.Image:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "JPEG")
    return Image.open(io.BytesIO(file.getvalue()[: len(file.getvalue()) // 2]))


def test_good_requests_pass() -> None:
    for request in (
        REQUEST,
        replace(REQUEST, fps=23.976, guidance_scale=0.0, negative_prompt="blur", fit="pad"),
        replace(REQUEST, width=64, height=512, num_frames=81, steps=100, seed=2**63 - 1),
        replace(REQUEST, prompt=""),
    ):
        check_request(request, LIMITS)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("width", 250, "width 250 is not a multiple of 16: use 240 or 256"),
        ("height", 50, "height 50 is outside 64 to 512: use 64"),
        ("height", 100000, "use 512"),
        ("width", 256.0, "whole number"),
        ("width", float("nan"), "whole number"),
        ("num_frames", 18, "num_frames 18 is not 4 * k + 1: use 17"),
        ("num_frames", 0, "outside 5 to 81"),
        ("num_frames", True, "whole number"),
        ("fps", float("nan"), "outside 1 to 60"),
        ("fps", 0.0, "use 16"),
        ("fps", 120.0, "outside 1 to 60"),
        ("steps", 0, "steps 0 is outside 1 to 100: use 1"),
        ("seed", -1, "outside 0"),
        ("seed", 2**63, "outside 0"),
        ("guidance_scale", float("inf"), "outside 0 to 30"),
        ("guidance_scale", float("nan"), "outside 0 to 30"),
        ("guidance_scale", -1.0, "use 5"),
        ("prompt", "x" * 201, "201 characters"),
        ("prompt", "a \ud83d boat", "surrogate"),
        ("negative_prompt", "x" * 201, "at most 200"),
        ("fit", "stretch", "use one of crop, pad"),
        ("image", Image.new("RGB", (1000, 100)), "8 times"),
        ("image", Image.new("RGB", (0, 10)), "one pixel"),
        ("image", truncated_jpeg(), "cannot be read"),
    ],
)
def test_refusal_names_field_value_bound_and_way_out(field: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidVideoRequest) as refusal:
        check_request(replace(REQUEST, **{field: value}), LIMITS)
    assert refusal.value.param == field
    assert words in str(refusal.value)


def test_too_many_pixels() -> None:
    with pytest.raises(InvalidVideoRequest, match="scale both sides by") as refusal:
        check_request(replace(REQUEST, width=512, height=512), LIMITS)
    assert refusal.value.param == "width"


def test_models_without_guidance_refuse_it() -> None:
    limits = replace(LIMITS, default_guidance_scale=None, has_negative_prompt=False)
    with pytest.raises(InvalidVideoRequest, match="no guidance"):
        check_request(replace(REQUEST, guidance_scale=2.0), limits)
    with pytest.raises(InvalidVideoRequest, match="this model has none"):
        check_request(replace(REQUEST, negative_prompt="blur"), limits)


def test_odd_sides_are_refused_even_where_the_model_would_take_them() -> None:
    limits = replace(LIMITS, side_multiple=1)
    check_request(replace(REQUEST, width=250, height=250), limits)
    with pytest.raises(InvalidVideoRequest, match="use 250 or 252"):
        check_request(replace(REQUEST, width=251, height=250), limits)


@given(
    st.integers(1, 20), st.integers(0, 20), st.integers(1, 100), st.integers(0, 300),
    st.floats(0.0, 60.0), st.floats(1.0, 60.0),
)  # fmt: skip
def test_nearest_frames_is_legal_and_nearest(
    step: int, offset: int, lowest: int, span: int, seconds: float, fps: float
) -> None:
    limits = replace(
        LIMITS, frame_step=step, frame_offset=offset, min_frames=lowest, max_frames=lowest + span
    )
    legal = [n for n in range(lowest, lowest + span + 1) if (n - offset) % step == 0]
    assume(legal)
    found = limits.nearest_frames(seconds, fps)
    assert found in legal
    wanted = seconds * fps
    assert abs(found - wanted) == pytest.approx(min(abs(n - wanted) for n in legal), abs=1e-9)


@given(st.integers(-5, 700), st.integers(-5, 700))
def test_the_way_out_of_a_bad_side_is_a_good_side(width: int, height: int) -> None:
    try:
        check_request(replace(REQUEST, width=width, height=height), LIMITS)
    except InvalidVideoRequest as refusal:
        if "use " not in str(refusal):
            return
        advice = int(str(refusal).split("use ")[1].split()[0])
        other = {"width": "height", "height": "width"}[refusal.param]
        fixed = replace(REQUEST, **{refusal.param: advice, other: 128})
        check_request(fixed, LIMITS)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": ""}, "model is empty"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"num_threads": 0}, "num_threads 0 is below 1"),
    ],
)
def test_config_refusals(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineConfig(**fields)
