from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from video_engine.models.motion_small.config import MotionConfig
from video_engine.models.motion_small.latents import pack, unpack

SCALES = st.lists(st.floats(0.01, 2.0), min_size=16, max_size=16)


@settings(deadline=None)
@given(scales=SCALES, batch=st.integers(1, 3), per_latent=st.sampled_from([1, 2, 4, 8, 16]))
def test_unpack_undoes_pack(scales: list[float], batch: int, per_latent: int) -> None:
    config = MotionConfig(frame_scales=tuple(scales), frames_per_latent=per_latent)
    flow = torch.randn(batch, 16, 2, 8, 8)
    latent = pack(flow, config)
    assert latent.shape == (batch, 2 * per_latent, 16 // per_latent, 8, 8)
    torch.testing.assert_close(unpack(latent, config), flow)


def test_channels_hold_successive_frames() -> None:
    config = MotionConfig(frames_per_latent=4)
    flow = torch.arange(16.0).view(1, 16, 1, 1, 1).expand(1, 16, 2, 1, 1)
    latent = pack(flow, config)
    assert latent[0, :, 1, 0, 0].tolist() == [4, 4, 5, 5, 6, 6, 7, 7]


def test_config_survives_json() -> None:
    config = MotionConfig(frame_scales=tuple(0.1 + i / 100 for i in range(16)), num_steps=4)
    assert MotionConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    "fields", [{"frame_scales": (1.0,)}, {"frame_scales": (0.0,) * 16}, {"frames_per_latent": 5}]
)
def test_impossible_configs_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"frame"):
        MotionConfig(**fields)
