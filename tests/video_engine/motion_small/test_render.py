import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

from video_engine.models.motion_small.arrays import Picture
from video_engine.models.motion_small.canvas import Canvas, extend_picture
from video_engine.models.motion_small.cover import cover_factors
from video_engine.models.motion_small.cutout import cut_out
from video_engine.models.motion_small.layers import split_motion
from video_engine.models.motion_small.layout import node_coordinates, picture_layout
from video_engine.models.motion_small.render import clean_motion, margin_px, render
from video_engine.models.motion_small.warp import PixelGrid, sample
from video_engine.train.flows import MotionDraw, make_flow


def textured(height: int, width: int, seed: int = 0) -> Picture:
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(40, 215, (height // 8 + 2, width // 8 + 2, 3))
    return np.kron(coarse, np.ones((8, 8, 1)))[:height, :width].astype(np.uint8)


def disc_picture(side: int = 192) -> Picture:
    """A bright disc left of the middle on a dark, faintly textured ground."""
    y, x = np.mgrid[0:side, 0:side]
    picture = np.random.default_rng(3).integers(20, 40, (side, side, 3)).astype(np.uint8)
    picture[np.hypot(x - 0.42 * side, y - 0.5 * side) < 0.2 * side] = (240, 200, 60)
    return picture


SIZES = st.integers(64, 150)


@settings(max_examples=10, deadline=None)
@given(height=SIZES, width=SIZES, num_frames=st.integers(2, 12), seed=st.integers(0, 99))
def test_frame_zero_is_the_picture_whatever_the_motion(
    height: int, width: int, num_frames: int, seed: int
) -> None:
    picture = textured(height, width, seed)
    noise = np.random.default_rng(seed).standard_normal((16, 2, 32, 32)).astype(np.float32)
    frames = render(picture, 0.1 * noise, picture_layout(picture, 32), num_frames)
    assert frames.shape == (num_frames, height, width, 3)
    assert np.array_equal(frames[0], picture)


@settings(max_examples=10, deadline=None)
@given(height=SIZES, width=SIZES)
def test_zero_motion_samples_the_picture_bit_for_bit(height: int, width: int) -> None:
    picture = textured(height, width)
    grid = PixelGrid.build(height, width, 32)
    canvas = Canvas(pixels=picture, margin=0)
    x_px, y_px = grid.source_px(np.zeros((2, 32, 32), np.float32), 1.0)
    assert np.array_equal(sample(canvas, x_px, y_px), picture)


@settings(max_examples=20, deadline=None)
@given(height=SIZES, width=SIZES, seed=st.integers(0, 999))
def test_affine_motion_is_exact_at_every_pixel(height: int, width: int, seed: int) -> None:
    a, b, c, d, e, f = np.random.default_rng(seed).uniform(-0.5, 0.5, 6)
    nodes_x, nodes_y = node_coordinates(32)
    flow = np.stack([a * nodes_x + b * nodes_y + c, d * nodes_x + e * nodes_y + f])
    dense = PixelGrid.build(height, width, 32).upsample(flow.astype(np.float32))
    half = (max(height, width) - 1) / 2
    y, x = np.mgrid[0:height, 0:width].astype(float)
    x, y = (x - (width - 1) / 2) / half, (y - (height - 1) / 2) / half
    np.testing.assert_allclose(dense[0], a * x + b * y + c, atol=1e-5)
    np.testing.assert_allclose(dense[1], d * x + e * y + f, atol=1e-5)


def test_whole_pixel_shift_agrees_with_scipy() -> None:
    picture = textured(80, 96)
    grid = PixelGrid.build(80, 96, 32)
    flow = np.zeros((2, 32, 32), np.float32)
    flow[0] = 7 / grid.half_px
    canvas = Canvas(pixels=picture, margin=0)
    found = sample(canvas, *grid.source_px(flow, 1.0))
    y, x = np.mgrid[0:80, 0:96]
    oracle = map_coordinates(picture[..., 0], [y, x + 7], order=1, mode="reflect")
    assert np.abs(found[..., 0].astype(int) - oracle)[:, :-8].max() <= 1


def test_canvas_holds_the_picture_and_continues_at_its_rim() -> None:
    picture = textured(90, 120)
    canvas = extend_picture(picture, 30)
    m = canvas.margin
    assert m == 30
    assert np.array_equal(canvas.pixels[m:-m, m:-m], picture)
    jump = np.abs(canvas.pixels[m:-m, m - 1].astype(int) - picture[:, 0])
    assert jump.mean() < 8


@pytest.mark.parametrize("kind", ["pan left", "rotate cw", "pan up"])
def test_full_cover_halves_what_lies_outside_by_a_modest_zoom(kind: str) -> None:
    layout = picture_layout(textured(128, 128), 32)
    flow = clean_motion(make_flow(kind, layout, MotionDraw()), 9)
    factors = cover_factors(flow, layout.extent, 1.0)
    assert factors[0] == 1.0
    assert (np.diff(factors) >= 0).all()
    ends = np.stack(node_coordinates(32)) + flow[-1]
    outside = np.abs(ends).max() - 1
    assert np.abs(ends / factors[-1]).max() - 1 <= 0.5 * outside
    assert factors[-1] - 1 <= 0.6 * np.hypot(*flow[-1]).max()


@pytest.mark.parametrize("kind", ["wave", "ripple", "breathe", "zoom in", "still"])
def test_cover_leaves_waves_and_zooms_alone(kind: str) -> None:
    layout = picture_layout(textured(128, 128), 32)
    flow = clean_motion(make_flow(kind, layout, MotionDraw()), 9)
    np.testing.assert_allclose(cover_factors(flow, layout.extent, 1.0), 1.0, atol=0.02)


def test_a_compact_object_moves_as_a_layer_and_leaves_the_ground() -> None:
    picture = disc_picture()
    layout = picture_layout(picture, 32)
    cutout = cut_out(picture)
    assert cutout is not None
    assert cutout.plate.max() < 120
    flow = make_flow("object right", layout, MotionDraw())
    motion = split_motion(clean_motion(flow, 9), layout)
    assert motion is not None
    last = render(picture, flow, layout, 9)[-1].astype(int)
    shift_px = 0.22 * 191 / 2
    disc = np.argwhere(last[..., 0] > 150)
    assert abs(disc[:, 1].mean() - (0.42 * 192 + shift_px)) < 4
    assert abs(disc[:, 0].mean() - 96) < 3
    assert np.abs(last[:, 160:] - picture[:, 160:]).max() < 30


@pytest.mark.parametrize("kind", ["pan left", "zoom in", "breathe", "wave", "still"])
def test_other_motions_have_no_layers(kind: str) -> None:
    layout = picture_layout(disc_picture(), 32)
    assert split_motion(clean_motion(make_flow(kind, layout, MotionDraw()), 9), layout) is None


def test_no_cutout_without_an_object() -> None:
    flat = np.full((128, 128, 3), 120, np.uint8)
    assert cut_out(flat) is None
    assert cut_out(textured(128, 128)) is None


def test_cutout_does_not_depend_on_earlier_calls() -> None:
    picture = disc_picture()
    first = cut_out(picture)
    cut_out(disc_picture(150))
    second = cut_out(picture)
    assert first is not None
    assert second is not None
    assert np.array_equal(first.alpha, second.alpha)


def test_wide_picture_rotates_without_shear() -> None:
    picture = textured(96, 192)
    layout = picture_layout(picture, 32)
    flow = make_flow("rotate cw", layout, MotionDraw())
    dense = PixelGrid.build(96, 192, 32).upsample(clean_motion(flow, 5)[-1])
    half = 191 / 2
    y, x = (np.mgrid[0:96, 0:192] - np.array([47.5, 95.5])[:, None, None]) / half
    radius = np.hypot(x + dense[0], y + dense[1])
    np.testing.assert_allclose(radius, np.hypot(x, y), atol=1e-4)


@pytest.mark.parametrize(("kind", "least", "most"), [("zoom in", 2, 12), ("zoom out", 10, 24)])
def test_margin_is_what_the_motion_needs(kind: str, least: int, most: int) -> None:
    layout = picture_layout(textured(128, 128), 32)
    flow = clean_motion(make_flow(kind, layout, MotionDraw()), 5)
    assert least <= margin_px(flow, np.ones(5, np.float32), layout.extent, 63.5) <= most
