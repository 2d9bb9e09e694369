"""The seam between the stages and a model family."""

from __future__ import annotations

from typing import Any, Protocol

from video_engine.types import Clip, Conditioning, Latents, VideoLimits, VideoRequest


class VideoModel(Protocol):
    """One loaded model. Stages call it in this order; it keeps no state of a request.

    Invariants: the same request gives the same clip, whatever ran before; noise is drawn on the
    CPU from a `torch.Generator` seeded with `request.seed`.
    """

    name: str
    source: str
    limits: VideoLimits

    def encode(self, request: VideoRequest) -> Conditioning:
        """Fit the picture; turn picture and prompt into the model's conditioning tensors."""
        ...

    def prepare(self, request: VideoRequest, conditioning: Conditioning) -> Latents:
        """Draw the noise and set the schedulers: the latents before the first update."""
        ...

    def step(self, conditioning: Conditioning, latents: Latents) -> Latents:
        """One update of the denoising loop, from `latents.index` to `latents.index + 1`."""
        ...

    def decode(self, request: VideoRequest, conditioning: Conditioning, latents: Latents) -> Clip:
        """Latents to frames: exactly `request.num_frames` of (height, width)."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Facts that a re-render needs: family, classes, weight hashes, scheduler settings."""
        ...
