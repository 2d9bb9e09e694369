"""What workers publish about themselves."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from workers.protocol.wire import Wire


class VideoLimits(Wire):
    """What a video model accepts (mirror of the engine's limits; see video_engine.types)."""

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


class LLMLimits(Wire):
    """What a language model accepts, and the LoRA adapters it may be asked for. Units: tokens."""

    max_model_len: int
    vocab_size: int
    adapters: tuple[str, ...] = ()


class WorkerState(StrEnum):
    """Life of a worker process."""

    LOADING = "loading"
    IDLE = "idle"
    BUSY = "busy"
    FAILED = "failed"


class WorkerFacts(Wire):
    """A worker's row: who it is, what it serves, when it was last heard of.

    `card` says where the weights came from and what they are, for people. `plan` is the launch
    plan of the model on the worker's machine, or {"error": …} where none could be made.
    `decisions` are what the engine has chosen so far and why, `stats` its counters: renewed with
    every beat.
    """

    id: str
    role: Literal["llm", "video"]
    model: str
    state: WorkerState
    source: str = ""
    devices: str = "cpu"
    card: dict[str, Any] = Field(default_factory=dict[str, Any])
    plan: dict[str, Any] | None = None
    decisions: tuple[dict[str, Any], ...] = ()
    stats: dict[str, Any] = Field(default_factory=dict[str, Any])
    llm: LLMLimits | None = None
    video: VideoLimits | None = None
    error: str | None = None
    started_at: datetime
    beat_at: datetime

    @property
    def plan_hash(self) -> str | None:
        """The hash of what the engine runs: its own where it says one, else the plan's."""
        found = self.card.get("plan_hash") or (self.plan or {}).get("hash")
        return str(found) if found else None
