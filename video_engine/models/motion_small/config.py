"""Shapes, scales and sampling settings of motion-small, and the JSON file they are kept in."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

CONFIG_NAME = "motion_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """Hash table sizes and widths of the text encoder."""

    max_words: int = 24
    max_trigrams: int = 12
    num_stems: int = 4096
    num_bigrams: int = 8192
    num_trigrams: int = 4096
    dim: int = 64
    num_heads: int = 4

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise ValueError(f"text dim {self.dim} is not a multiple of {self.num_heads} heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionConfig:
    """Everything a saved motion-small needs besides its tensors.

    Units: flows are in units of half the picture's longer side (the square canvas is [-1, 1]^2).
    ``frame_scales`` holds the root mean square of the training flows per motion frame; latents are
    flows divided by it.
    """

    num_motion_frames: int = 16
    grid: int = 32
    frames_per_latent: int = 8
    num_condition_channels: int = 7
    timestep_shift: float = 40.0
    num_steps: int = 6
    frame_scales: tuple[float, ...] = (1.0,) * 16
    text: TextConfig = TextConfig()

    def __post_init__(self) -> None:
        if len(self.frame_scales) != self.num_motion_frames:
            raise ValueError(
                f"{len(self.frame_scales)} frame scales for {self.num_motion_frames} motion frames"
            )
        if min(self.frame_scales) <= 0.0:
            raise ValueError(f"frame scales must be positive, got {min(self.frame_scales)}")
        if self.num_motion_frames % self.frames_per_latent:
            raise ValueError(
                f"{self.num_motion_frames} motion frames do not pack into latent frames of "
                f"{self.frames_per_latent}"
            )

    @property
    def num_latent_frames(self) -> int:
        """Frames of the latent: motion frames over frames per latent."""
        return self.num_motion_frames // self.frames_per_latent

    @property
    def num_latent_channels(self) -> int:
        """Channels of the latent: dx and dy of every packed frame."""
        return 2 * self.frames_per_latent

    def to_json(self) -> str:
        """The JSON text that ``from_json`` reads back to an equal config."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parses ``to_json``'s text; an unknown key is a TypeError."""
        fields: dict[str, Any] = json.loads(text)
        fields["frame_scales"] = tuple(fields["frame_scales"])
        fields["text"] = TextConfig(**fields["text"])
        return cls(**fields)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the config of a weights folder."""
        return cls.from_json((folder / CONFIG_NAME).read_text())
