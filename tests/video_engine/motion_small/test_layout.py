import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from video_engine.models.motion_small.layout import picture_layout
from video_engine.models.motion_small.saliency import object_mask


@settings(max_examples=15, deadline=None)
@given(height=st.integers(64, 300), width=st.integers(64, 300), seed=st.integers(0, 99))
def test_any_picture_has_a_finite_layout_in_range(height: int, width: int, seed: int) -> None:
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    layout = picture_layout(picture, 32)
    condition = layout.condition()
    assert condition.shape == (7, 32, 32)
    assert np.isfinite(condition).all()
    assert np.abs(condition).max() <= 1.0 + 1e-6
    assert max(layout.extent) == 1.0


@pytest.mark.parametrize("value", [0, 128, 255])
def test_flat_pictures_get_the_centred_ellipse(value: int) -> None:
    layout = picture_layout(np.full((100, 100, 3), value, np.uint8), 32)
    assert layout.mask[16, 16] == 1
    assert layout.mask[0].sum() == 0
    assert np.hypot(*layout.centre) < 0.05


def test_the_odd_one_out_is_the_object() -> None:
    picture = np.full((120, 160, 3), (30, 60, 120), np.uint8)
    picture[40:80, 90:130] = (230, 60, 40)
    mask = object_mask(picture, (160, 120))
    truth = np.zeros((120, 160))
    truth[40:80, 90:130] = 1
    overlap = np.minimum(mask, truth).sum() / np.maximum(mask, truth).sum()
    assert overlap > 0.7


def test_layout_is_the_same_each_time() -> None:
    picture = np.random.default_rng(5).integers(0, 256, (90, 70, 3)).astype(np.uint8)
    first, second = picture_layout(picture, 32), picture_layout(picture, 32)
    assert np.array_equal(first.condition(), second.condition())
