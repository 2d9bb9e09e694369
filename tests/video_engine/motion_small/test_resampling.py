import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import CubicHermiteSpline

from video_engine.models.motion_small.resampling import cubic_matrix, smoothing_matrix

NUMBERS = st.floats(-3, 3, width=32)


@given(slope=NUMBERS, offset=NUMBERS, knots=st.integers(2, 40), count=st.integers(1, 50))
def test_lines_are_exact_everywhere(slope: float, offset: float, knots: int, count: int) -> None:
    positions = np.linspace(0, knots - 1, count)
    found = cubic_matrix(positions, knots) @ (slope * np.arange(knots) + offset)
    np.testing.assert_allclose(found, slope * positions + offset, atol=1e-4)


@given(slope=NUMBERS, offset=NUMBERS, sigma=st.floats(0.3, 3))
def test_smoothing_keeps_lines(slope: float, offset: float, sigma: float) -> None:
    line = slope * np.arange(32) + offset
    np.testing.assert_allclose(smoothing_matrix(32, sigma) @ line, line, atol=1e-3)


@given(st.integers(0, 2**32 - 1))
def test_agrees_with_scipys_hermite_spline(seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(12)
    padded = np.concatenate([[2 * values[0] - values[1]], values, [2 * values[-1] - values[-2]]])
    slopes = (padded[2:] - padded[:-2]) / 2
    positions = np.linspace(0, 11, 57)
    oracle = CubicHermiteSpline(np.arange(12), values, slopes)(positions)
    np.testing.assert_allclose(cubic_matrix(positions, 12) @ values, oracle, atol=1e-5)


def test_knots_are_hit_exactly() -> None:
    assert np.array_equal(cubic_matrix(np.arange(9.0), 9), np.eye(9, dtype=np.float32))
