from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
from hypothesis import given
from hypothesis import strategies as st

from video_engine.models.motion_small.config import MotionConfig
from video_engine.models.motion_small.network import (
    predict_motion,
    transformer_config,
    velocity_from_motion,
)

CONFIG = MotionConfig()


def test_transformer_is_stock_and_small() -> None:
    transformer = WanTransformer3DModel(**transformer_config(CONFIG))
    assert type(transformer).__module__.startswith("diffusers.")
    assert sum(p.numel() for p in transformer.parameters()) < 5_000_000


def test_prediction_has_the_latents_shape() -> None:
    transformer = WanTransformer3DModel(**transformer_config(CONFIG))
    channels, frames, grid = CONFIG.num_latent_channels, CONFIG.num_latent_frames, CONFIG.grid
    latent = torch.randn(2, channels, frames, grid, grid)
    with torch.no_grad():
        found = predict_motion(
            transformer,
            latent,
            torch.randn(2, CONFIG.num_condition_channels, grid, grid),
            torch.randn(2, 25, CONFIG.text.dim),
            torch.tensor([1.0, 0.5]),
        )
    assert found.shape == latent.shape


@given(st.floats(0.01, 1.0))
def test_velocity_is_noise_minus_motion(t: float) -> None:
    x0, noise = torch.randn(2, 3), torch.randn(2, 3)
    x_t = (1 - t) * x0 + t * noise
    torch.testing.assert_close(velocity_from_motion(x_t, x0, t), noise - x0, atol=1e-3, rtol=1e-3)


def test_stock_scheduler_ends_at_a_constant_prediction() -> None:
    scheduler: Any = FlowMatchEulerDiscreteScheduler(shift=40.0)
    scheduler.set_timesteps(6)
    x0, x_t = torch.randn(2, 5), torch.randn(2, 5)
    for index, t in enumerate(scheduler.timesteps):
        v = velocity_from_motion(x_t, x0, float(scheduler.sigmas[index]))
        x_t = scheduler.step(v, t, x_t, return_dict=False)[0]
    torch.testing.assert_close(x_t, x0, atol=1e-5, rtol=1e-5)
