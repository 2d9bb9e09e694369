"""Stage 2: the noise and the schedulers of one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from video_engine.models.base import VideoModel
    from video_engine.types import Conditioning, Latents, VideoRequest


def prepare(model: VideoModel, request: VideoRequest, conditioning: Conditioning) -> Latents:
    """The latents before the first update, noise drawn on the CPU from `request.seed`."""
    latents = model.prepare(request, conditioning)
    assert latents.index == 0
    assert latents.steps >= 1
    return latents
