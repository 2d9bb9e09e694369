"""The values that travel through the stages: request → conditioning → latents → clip.

Legend: F frames, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image

Fit = Literal["crop", "pad"]


class Stage(StrEnum):
    """The five stages of a render, in order."""

    ENCODE = "encode"
    PREPARE = "prepare"
    DENOISE = "denoise"
    DECODE = "decode"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoLimits:
    """What a model accepts; published to the gateway, which validates against it.

    Units: sides in pixels; a legal frame count is `frame_step * k + frame_offset`.
    """

    min_side: int
    max_side: int
    side_multiple: int
    max_area: int
    default_area: int
    min_frames: int
    max_frames: int
    frame_step: int
    frame_offset: int
    default_fps: float
    min_fps: float
    max_fps: float
    default_seconds: float
    default_steps: int
    min_steps: int
    max_steps: int
    max_prompt_chars: int
    default_guidance_scale: float | None
    has_negative_prompt: bool
    has_audio: bool = False

    def nearest_frames(self, seconds: float, fps: float) -> int:
        """The legal frame count nearest to `seconds * fps`, within the bounds."""
        wanted = min(max(seconds * fps, self.min_frames), self.max_frames)
        lowest_k = -(-(self.min_frames - self.frame_offset) // self.frame_step)
        highest_k = (self.max_frames - self.frame_offset) // self.frame_step
        k = round((wanted - self.frame_offset) / self.frame_step)
        return self.frame_step * min(max(k, lowest_k), highest_k) + self.frame_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """One render, every choice made: the same request gives the same pixels.

    `image` is an RGB picture of any size; the engine fits it to (width, height) by `fit`.
    """

    image: Image.Image
    prompt: str
    width: int
    height: int
    num_frames: int
    fps: float
    steps: int
    seed: int
    fit: Fit = "crop"
    negative_prompt: str = ""
    guidance_scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """What the stages after `encode` need: the fitted picture and the model's own tensors.

    `scalars` are the request's numbers that a step reads (guidance scale, frame rate).
    Shapes: picture (H, W, 3) uint8, exactly the request's size.
    """

    picture: np.ndarray
    tensors: Mapping[str, torch.Tensor]
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """State of the denoising loop after `index` of `steps` updates.

    `schedulers` belong to this request alone: multistep solvers keep history inside.
    """

    tensors: Mapping[str, torch.Tensor]
    schedulers: Mapping[str, Any]
    index: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """Sound of a clip: samples (channels, N) float32 in -1…1 at `rate_hz`."""

    samples: np.ndarray
    rate_hz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Decoded frames, (F, H, W, 3) uint8, with sound where the model makes it."""

    frames: np.ndarray
    audio: Audio | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`step` of `steps` of a stage are done; `percent` (0 to 100) is of the whole render."""

    stage: Stage
    step: int
    steps: int
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoResult:
    """The clip and the recipe: everything needed to render it again.

    Units: `stage_seconds` maps a stage to its wall time.
    """

    clip: Clip
    fps: float
    recipe: Mapping[str, Any]
    stage_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
