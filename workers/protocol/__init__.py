"""The wire: every value that crosses between the gateway, the store and a worker.

Only the standard library and pydantic; anything may import it.
"""

from workers.protocol.chat import (
    ChatConstraint,
    ChatDelta,
    ChatDone,
    ChatEvent,
    ChatFailed,
    ChatMessage,
    ChatParams,
    ChatRequest,
    ChatTool,
    ChatToolUse,
    PromptScored,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)
from workers.protocol.facts import LLMLimits, VideoLimits, WorkerFacts, WorkerState
from workers.protocol.jobs import (
    Artifact,
    Job,
    JobError,
    JobKind,
    JobLabels,
    JobProgress,
    JobStatus,
    VideoJobRequest,
)

__all__ = [
    "Artifact",
    "ChatConstraint",
    "ChatDelta",
    "ChatDone",
    "ChatEvent",
    "ChatFailed",
    "ChatMessage",
    "ChatParams",
    "ChatRequest",
    "ChatTool",
    "ChatToolUse",
    "Job",
    "JobError",
    "JobKind",
    "JobLabels",
    "JobProgress",
    "JobStatus",
    "LLMLimits",
    "PromptScored",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
    "VideoJobRequest",
    "VideoLimits",
    "WorkerFacts",
    "WorkerState",
]
