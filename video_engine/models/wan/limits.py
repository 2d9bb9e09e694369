"""What a Wan checkpoint accepts, read from its configs."""

from __future__ import annotations

import math

from video_engine.models.pipelines import Stock
from video_engine.types import VideoLimits

# The pipeline refuses sides that 16 does not divide, whatever the autoencoder could do.
_PIPELINE_MULTIPLE = 16
_MAX_SIDE = 1920


def read_limits(pipe: Stock) -> VideoLimits:
    """Sides and frame counts from autoencoder, patches and rotary tables; rates by generation."""
    transformer = pipe.transformer.config
    patch_height, patch_width = transformer.patch_size[1:]
    spatial, temporal = pipe.vae_scale_factor_spatial, pipe.vae_scale_factor_temporal
    side_multiple = math.lcm(spatial * patch_height, spatial * patch_width, _PIPELINE_MULTIPLE)
    rope_frames = (transformer.rope_max_seq_len - 1) * temporal + 1
    is_5b = bool(pipe.config.expand_timesteps)
    has_experts = pipe.config.boundary_ratio is not None
    return VideoLimits(
        min_side=side_multiple,
        max_side=min(_MAX_SIDE // side_multiple, transformer.rope_max_seq_len) * side_multiple,
        side_multiple=side_multiple,
        max_area=1280 * 736,
        default_area=1280 * 704 if is_5b else 832 * 480,
        min_frames=temporal + 1,
        max_frames=min(40 * temporal + 1, rope_frames),
        frame_step=temporal,
        frame_offset=1,
        default_fps=24.0 if is_5b else 16.0,
        min_fps=1.0,
        max_fps=60.0,
        default_seconds=5.0,
        default_steps=50 if is_5b else 40,
        min_steps=1,
        max_steps=100,
        max_prompt_chars=2000,
        default_guidance_scale=3.5 if has_experts else 5.0,
        has_negative_prompt=True,
    )
