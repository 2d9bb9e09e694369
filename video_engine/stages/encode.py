"""Stage 1: picture and prompt to conditioning tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from video_engine.models.base import VideoModel
    from video_engine.types import Conditioning, VideoRequest


def encode(model: VideoModel, request: VideoRequest) -> Conditioning:
    """Fit the picture and let the model's encoders read picture and prompt.

    Shapes: the result's picture is (height, width, 3) uint8.
    """
    conditioning = model.encode(request)
    assert conditioning.picture.shape == (request.height, request.width, 3)
    return conditioning
