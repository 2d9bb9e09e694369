"""Stage 4: latents to frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from video_engine.models.base import VideoModel
    from video_engine.types import Clip, Conditioning, Latents, VideoRequest


def decode(
    model: VideoModel, request: VideoRequest, conditioning: Conditioning, latents: Latents
) -> Clip:
    """Decode the denoised latents.

    Shapes: frames (num_frames, height, width, 3) uint8, as the request says.
    """
    clip = model.decode(request, conditioning, latents)
    assert clip.frames.shape == (request.num_frames, request.height, request.width, 3)
    return clip
