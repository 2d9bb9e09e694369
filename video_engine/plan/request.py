"""What a video plan is made for: the clip, the precision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRequest:
    """Sizes of a clip. Units: pixels, frames, text tokens; 0 takes the family's default."""

    width: int = 0
    height: int = 0
    num_frames: int = 0
    text_tokens: int = 512
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        """Refuse sizes that no clip has."""
        for name in ("width", "height", "num_frames"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")

    def or_default(self, width: int, height: int, num_frames: int) -> ClipRequest:
        """The request with a family's sizes where none were asked for."""
        return ClipRequest(
            width=self.width or width,
            height=self.height or height,
            num_frames=self.num_frames or num_frames,
            text_tokens=self.text_tokens,
            dtype=self.dtype,
        )
