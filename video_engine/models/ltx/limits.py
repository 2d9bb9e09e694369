"""What an LTX-Video checkpoint accepts, read from its configs."""

from __future__ import annotations

import math

from video_engine.models.pipelines import Stock
from video_engine.types import VideoLimits

# The pipeline refuses sides that 32 does not divide, whatever the autoencoder could do.
_PIPELINE_MULTIPLE = 32


def read_limits(pipe: Stock) -> VideoLimits:
    """Sides and frame counts from the autoencoder's compression; the rest as released."""
    spatial = pipe.vae_spatial_compression_ratio * pipe.transformer_spatial_patch_size
    temporal = pipe.vae_temporal_compression_ratio * pipe.transformer_temporal_patch_size
    side_multiple = math.lcm(spatial, _PIPELINE_MULTIPLE)
    return VideoLimits(
        min_side=side_multiple,
        max_side=1280 // side_multiple * side_multiple,
        side_multiple=side_multiple,
        max_area=1280 * 736,
        default_area=704 * 512,
        min_frames=temporal + 1,
        max_frames=256 // temporal * temporal + 1,
        frame_step=temporal,
        frame_offset=1,
        default_fps=25.0,
        min_fps=1.0,
        max_fps=60.0,
        default_seconds=5.0,
        default_steps=50,
        min_steps=1,
        max_steps=100,
        max_prompt_chars=1000,
        default_guidance_scale=3.0,
        has_negative_prompt=True,
    )
