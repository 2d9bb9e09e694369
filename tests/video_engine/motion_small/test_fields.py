import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from video_engine.models.motion_small.arrays import FloatArray
from video_engine.models.motion_small.fields import (
    MIN_JACOBIAN,
    fit_affine,
    frames_from_motion,
    jacobians,
    make_rigid,
    smooth,
    unfold,
)
from video_engine.models.motion_small.layout import node_coordinates

PARTS = st.lists(st.floats(-0.375, 0.375, width=32), min_size=6, max_size=6)


def affine_flow(parts: list[float], frames: int = 3, size: int = 32) -> FloatArray:
    x, y = node_coordinates(size)
    a, b, c, d, e, f = parts
    flow = np.stack([a * x + b * y + c, d * x + e * y + f])
    return np.stack([flow * (i + 1) / frames for i in range(frames)]).astype(np.float32)


@given(PARTS)
def test_affine_motion_passes_smoothing_unchanged(parts: list[float]) -> None:
    flow = affine_flow(parts)
    np.testing.assert_allclose(smooth(flow, 1.5), flow, atol=2e-5)


@given(PARTS)
def test_affine_fit_finds_the_matrix(parts: list[float]) -> None:
    fit = fit_affine(affine_flow(parts, frames=1))
    np.testing.assert_allclose(fit.matrix[0], [parts[:2], parts[3:5]], atol=1e-5)
    np.testing.assert_allclose(fit.shift[0], [parts[2], parts[5]], atol=1e-5)


@given(PARTS)
def test_jacobian_of_affine_motion_is_its_determinant(parts: list[float]) -> None:
    matrix = np.eye(2) + np.array([parts[:2], parts[3:5]])
    found = jacobians(affine_flow(parts, frames=1))
    np.testing.assert_allclose(found, np.linalg.det(matrix), atol=1e-3)


@given(st.integers(2, 361))
def test_first_frame_is_still_and_last_is_the_last_motion_frame(num_frames: int) -> None:
    motion = np.random.default_rng(0).standard_normal((16, 2, 4, 4)).astype(np.float32)
    frames = frames_from_motion(motion, num_frames)
    assert frames.shape[0] == num_frames
    assert not frames[0].any()
    np.testing.assert_allclose(frames[-1], motion[-1], atol=1e-6)


def test_seventeen_frames_are_the_motion_frames_themselves() -> None:
    motion = np.random.default_rng(1).standard_normal((16, 2, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(frames_from_motion(motion, 17)[1:], motion, atol=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(0.05, 1.0))
def test_unfolded_motion_has_no_folds(seed: int, strength: float) -> None:
    noise = np.random.default_rng(seed).standard_normal((2, 2, 16, 16))
    found = unfold((strength * noise).astype(np.float32))
    assert jacobians(found).min() >= MIN_JACOBIAN


def test_unfold_leaves_good_motion_alone() -> None:
    flow = affine_flow([0.2, 0.1, 0.0, -0.1, 0.2, 0.0])
    assert unfold(flow) is flow


@pytest.mark.parametrize(("wobble", "is_removed"), [(0.002, True), (0.1, False)])
def test_small_wobble_of_a_camera_move_is_removed(wobble: float, is_removed: bool) -> None:
    flow = affine_flow([0.2, 0.0, 0.1, 0.0, 0.2, 0.0])
    noise = np.random.default_rng(2).standard_normal(flow.shape).astype(np.float32)
    rigid = make_rigid(flow + wobble * noise)
    assert (np.abs(rigid - flow).max() < wobble) == is_removed
