"""Stage 3: x_{i+1} = step(c, x_i), the loop every family shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from video_engine.models.base import VideoModel
    from video_engine.types import Conditioning, Latents


def denoise(model: VideoModel, conditioning: Conditioning, latents: Latents) -> Iterator[Latents]:
    """Yield the latents after every update, from `latents.index + 1` to `latents.steps`.

    Starts where `latents` stands, so a saved state goes on as if it had never stopped.
    """
    while latents.index < latents.steps:
        latents = model.step(conditioning, latents)
        yield latents
