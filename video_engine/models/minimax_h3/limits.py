"""What a MiniMax-H3 checkpoint accepts, read from its components."""

from __future__ import annotations

import math

from video_engine.models.pipelines import Stock
from video_engine.types import VideoLimits

_MAX_SIDE = 2560
_MAX_AREA = 1440 * 2560  # the largest canvas in use; the released one is the default area


def read_limits(pipe: Stock) -> VideoLimits:
    """Sides from compression and patches, frames from the autoencoder's chunks and durations."""
    step, offset = pipe.vae_frames_per_chunk, pipe.vae_latents_per_chunk
    fewest = math.ceil((pipe.min_duration * pipe.fps - offset) / step) * step + offset
    most = math.floor((pipe.max_duration * pipe.fps - offset) / step) * step + offset
    fps = float(pipe.fps)
    return VideoLimits(
        min_side=pipe.canvas_multiple,
        max_side=_MAX_SIDE // pipe.canvas_multiple * pipe.canvas_multiple,
        side_multiple=pipe.canvas_multiple,
        max_area=_MAX_AREA,
        default_area=pipe.config.canvas_max_pixels,
        min_frames=fewest,
        max_frames=most,
        frame_step=step,
        frame_offset=offset,
        default_fps=fps,
        min_fps=fps,
        max_fps=fps,
        default_seconds=pipe.min_duration,
        default_steps=50,
        min_steps=2,
        max_steps=100,
        max_prompt_chars=4000,
        default_guidance_scale=None,
        has_negative_prompt=False,
        has_audio=True,
    )
