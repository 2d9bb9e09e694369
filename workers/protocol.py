"""The wire: every value that crosses between the gateway, the store and a worker.

Only the standard library and pydantic; anything may import it.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# ---------------------------------------------------------------- jobs


class JobKind(StrEnum):
    """What a job makes."""

    IMAGE_TO_VIDEO = "image_to_video"


class JobStatus(StrEnum):
    """The state machine: queued → running → succeeded | failed | cancelled | dead.

    `cancelling` is a running job that was told to stop; terminal states absorb.
    """

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def is_terminal(self) -> bool:
        """No transition leaves this state (a retry makes the job queued again, by request)."""
        return self in {self.SUCCEEDED, self.FAILED, self.CANCELLED, self.DEAD}


class JobProgress(_Wire):
    """How far a running job is. `percent` is 0–100 of the whole job and never falls."""

    stage: str
    step: int
    steps: int
    percent: float
    eta_seconds: float | None = None


class Artifact(_Wire):
    """One file that a job made; `path` is its place in the artifact store."""

    name: str
    media_type: str
    bytes: int
    sha256: str
    path: str


class JobError(_Wire):
    """Why a job did not succeed: `code` for programs, `message` for people."""

    code: str
    message: str


class VideoJobRequest(_Wire):
    """An image-to-video job with every choice made, so that a retry renders the same pixels.

    `image` is the id of a stored file. Units: sides in pixels, `seconds` of clip, `fps` frames/s.
    """

    model: str
    image: str
    image_name: str = ""
    prompt: str
    negative_prompt: str = ""
    seconds: float
    fps: float
    width: int
    height: int
    fit: Literal["crop", "pad"] = "crop"
    seed: int
    steps: int
    guidance_scale: float | None = None
    save_frames: bool = False


class JobLabels(_Wire):
    """How people find a job again; none of it changes the pixels."""

    priority: int = Field(default=0, ge=-100, le=100)
    project: str = ""
    shot: str = ""
    tags: tuple[str, ...] = ()
    webhook_url: str | None = None


class Job(_Wire):
    """One row of the job store, as seen from outside.

    `attempt` is the fencing token: it grows with every claim. `queue_position` is 0 for the next
    job to start and None unless queued.
    """

    id: str
    kind: JobKind
    status: JobStatus
    request: VideoJobRequest
    labels: JobLabels
    progress: JobProgress | None
    queue_position: int | None
    attempt: int
    crashes: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    changed_at: datetime
    artifacts: tuple[Artifact, ...]
    error: JobError | None
    key_id: str
    batch_id: str | None


# ---------------------------------------------------------------- what workers publish


class VideoLimits(_Wire):
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


class LLMLimits(_Wire):
    """What a language model accepts. Units: tokens."""

    max_model_len: int
    vocab_size: int


class WorkerState(StrEnum):
    """Life of a worker process."""

    LOADING = "loading"
    IDLE = "idle"
    BUSY = "busy"
    FAILED = "failed"


class WorkerFacts(_Wire):
    """A worker's row: who it is, what it serves, when it was last heard of.

    `card` says where the weights came from and what they are, for people. `plan` is the launch
    plan of the model on the worker's machine, or {"error": …} where none could be made.
    """

    id: str
    role: Literal["llm", "video"]
    model: str
    state: WorkerState
    source: str = ""
    devices: str = "cpu"
    card: dict[str, Any] = Field(default_factory=dict[str, Any])
    plan: dict[str, Any] | None = None
    llm: LLMLimits | None = None
    video: VideoLimits | None = None
    error: str | None = None
    started_at: datetime
    beat_at: datetime


# ---------------------------------------------------------------- chat


class ChatMessage(_Wire):
    """One turn; text parts are already joined."""

    role: str
    content: str
    name: str | None = None


class ChatParams(_Wire):
    """Sampling, as asked for; None means the engine's default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = Field(default_factory=dict[int, float])
    ignore_eos: bool = False


class ChatRequest(_Wire):
    """One chat request on its way to an LLM worker (kept in Redis, found by `id`)."""

    id: str
    model: str
    messages: tuple[ChatMessage, ...]
    params: ChatParams


class TokenLogprob(_Wire):
    """Log-probability of one token, with its alternatives."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top: tuple[TokenLogprob, ...] = ()


class ChatDelta(_Wire):
    """New text of one choice."""

    type: Literal["delta"] = "delta"
    index: int
    text: str
    num_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: Literal["stop", "length"] | None = None


class ChatDone(_Wire):
    """Last event of an answer, with the usage over all choices."""

    type: Literal["done"] = "done"
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class ChatFailed(_Wire):
    """Last event of an answer that went wrong; `status` is the HTTP status it deserves."""

    type: Literal["failed"] = "failed"
    status: int
    code: str | None
    message: str
    param: str | None = None


ChatEvent = Annotated[ChatDelta | ChatDone | ChatFailed, Field(discriminator="type")]
