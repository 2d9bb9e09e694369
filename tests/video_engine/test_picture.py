"""Fitting: exact size, true proportions, upright, opaque."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from video_engine.picture import canvas_step, default_size, fit_picture, picture_sha256
from video_engine.types import Fit, VideoLimits

sides = st.integers(1, 300)


@settings(max_examples=60, deadline=None)
@given(sides, sides, sides, sides, st.sampled_from(["crop", "pad"]))
def test_size_is_exact(
    image_width: int, image_height: int, width: int, height: int, fit: Fit
) -> None:
    image = Image.new("RGB", (image_width, image_height), (9, 99, 199))
    fitted = fit_picture(image, width, height, fit)
    assert fitted.shape == (height, width, 3)
    assert fitted.dtype == np.uint8


@settings(max_examples=40, deadline=None)
@given(
    st.integers(80, 400), st.integers(80, 400), st.integers(48, 300), st.integers(48, 300),
    st.sampled_from(["crop", "pad"]),
)  # fmt: skip
def test_circle_stays_a_circle(
    image_width: int, image_height: int, width: int, height: int, fit: Fit
) -> None:
    cover = max if fit == "crop" else min
    scale = cover(width / image_width, height / image_height)
    diameter = 0.6 * min(image_width, image_height)
    assume(diameter * scale < 0.9 * min(width, height))  # the canvas must not cut it
    across, down = diameters(disc(image_width, image_height, diameter), width, height, fit)
    assert across == pytest.approx(diameter * scale, abs=1.0)
    assert down == pytest.approx(diameter * scale, abs=1.0)


@pytest.mark.parametrize(("fit", "scale"), [("crop", 2.56), ("pad", 256 / 300)])
def test_wide_circle_on_a_square_canvas(fit: Fit, scale: float) -> None:
    across, down = diameters(disc(300, 100, 80), 256, 256, fit)
    assert across == pytest.approx(80 * scale, abs=0.5)
    assert down == pytest.approx(80 * scale, abs=0.5)


def disc(width: int, height: int, diameter: float) -> Image.Image:
    """A white disc with soft edges in the middle of a black picture."""
    x, y = np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2
    distance = np.hypot(x[None, :], y[:, None])
    light = (diameter / 2 - distance + 0.5).clip(0, 1) * 255
    return Image.fromarray(light.round().astype(np.uint8)).convert("RGB")


def diameters(image: Image.Image, width: int, height: int, fit: Fit) -> tuple[float, float]:
    """Width and height of what is light after fitting, to a fraction of a pixel, by area."""
    light = fit_picture(image, width, height, fit)[..., 0] / 255.0
    x, y = np.arange(width), np.arange(height)
    total = light.sum()
    spread_x = (light.sum(axis=0) * (x - (light.sum(axis=0) * x).sum() / total) ** 2).sum() / total
    spread_y = (light.sum(axis=1) * (y - (light.sum(axis=1) * y).sum() / total) ** 2).sum() / total
    return 4 * math.sqrt(spread_x), 4 * math.sqrt(spread_y)  # a disc's variance is d² / 16


def test_crop_is_centred() -> None:
    ramp = np.zeros((10, 40, 3), np.uint8)
    ramp[..., 0] = np.arange(40)
    fitted = fit_picture(Image.fromarray(ramp), 10, 10, "crop")
    np.testing.assert_array_equal(fitted[0, :, 0], np.arange(15, 25))


def test_pad_shows_everything_on_black_bars() -> None:
    fitted = fit_picture(Image.new("RGB", (100, 50), (255, 255, 255)), 64, 64, "pad")
    assert (fitted[16:48] == 255).all()
    assert (fitted[:16] == 0).all()
    assert (fitted[48:] == 0).all()


def test_same_size_is_untouched() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fit_picture(Image.fromarray(pixels), 32, 24, "crop"), pixels)


def test_exif_orientation_is_honoured() -> None:
    image = Image.new("RGB", (40, 20))
    image.paste((255, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    image.info["exif"] = exif.tobytes()
    image.getexif()[0x0112] = 6
    fitted = fit_picture(image, 20, 40, "crop")
    assert (fitted[:18, :, 0] == 255).all()
    assert (fitted[22:, :, 0] == 0).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_lies_on_black(mode: str) -> None:
    rgba = Image.new("RGBA", (8, 8), (255, 255, 255, 0))
    rgba.paste((255, 255, 255, 255), (0, 0, 8, 4))
    fitted = fit_picture(rgba.convert(mode), 8, 8, "crop")
    assert (fitted[:4] >= 250).all()
    assert (fitted[4:] == 0).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.full((4, 4), 32896, np.uint16), 128),
        (np.full((4, 4), 0.5, np.float32), 128),
        (np.full((4, 4), 200.0, np.float32), 200),
        (np.full((4, 4), 65535, np.int32), 255),
    ],
)
def test_deep_greys_become_eight_bits(values: np.ndarray, expected: int) -> None:
    fitted = fit_picture(Image.fromarray(values), 4, 4, "crop")
    assert (fitted == expected).all()


@pytest.mark.parametrize("mode", ["1", "L", "CMYK", "YCbCr", "HSV", "LAB"])
def test_other_modes_are_read(mode: str) -> None:
    image = Image.new("RGB", (6, 6), (255, 255, 255))
    converted = Image.new("LAB", (6, 6)) if mode == "LAB" else image.convert(mode)
    assert fit_picture(converted, 12, 12, "crop").shape == (12, 12, 3)


def test_hash_is_of_pixels_not_of_the_file() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    assert picture_sha256(image) == picture_sha256(image.convert("RGBA"))
    assert picture_sha256(image) != picture_sha256(image.transpose(Image.Transpose.ROTATE_90))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([1, 2, 16, 32]))
def test_default_size_is_legal(image_width: int, image_height: int, side_multiple: int) -> None:
    limits = make_limits(side_multiple)
    width, height = default_size((image_width, image_height), limits)
    step = canvas_step(limits)
    for side in (width, height):
        assert side % step == 0
        assert limits.min_side <= side <= limits.max_side
    assert width * height <= limits.max_area
    ratio = image_width / image_height
    if 0.3 < ratio < 3.0:
        assert math.log(width / height) == pytest.approx(math.log(ratio), abs=0.12)


def make_limits(side_multiple: int) -> VideoLimits:
    return VideoLimits(
        min_side=64, max_side=1280, side_multiple=side_multiple, max_area=1280 * 736,
        default_area=832 * 480, min_frames=5, max_frames=81, frame_step=4, frame_offset=1,
        default_fps=16.0, min_fps=1.0, max_fps=60.0, default_seconds=5.0, default_steps=40,
        min_steps=1, max_steps=100, max_prompt_chars=200, default_guidance_scale=5.0,
        has_negative_prompt=True,
    )  # fmt: skip
