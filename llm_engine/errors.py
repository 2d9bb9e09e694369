"""Every error the engine raises on purpose.

LLMError
├── InvalidRequest (ValueError)      the caller's fault; `.param` names the field
│   └── ContextLengthExceeded        the prompt does not fit the model's context
├── InvalidConfig (ValueError)       an engine setting that cannot be met
│   └── MalformedLayout              a layout's text that names no layout
├── ModelNotFound                    the weights could not be found or fetched
├── UnsupportedModel                 the weights are there, the engine cannot run them
├── QueueFull                        too many requests are waiting
├── RequestFailed                    one request broke while running; the others go on
│   └── DeadlineExceeded             its own deadline passed
└── EngineDead                       the engine's thread has ended
"""


class LLMError(Exception):
    """Root of the tree."""


class InvalidRequest(LLMError, ValueError):
    """A request that can never be served as it is; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        """Keep the message and the name of the field at fault, if there is one."""
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for a single new token."""

    def __init__(
        self,
        prompt_tokens: int,
        max_model_len: int,
        param: str = "messages",
        *,
        is_exact: bool = True,
    ) -> None:
        """Keep both numbers, in tokens; `param` is the field that holds the prompt.

        `is_exact` is false where the prompt has `prompt_tokens` or more.
        """
        count = f"{prompt_tokens}" if is_exact else f"at least {prompt_tokens}"
        super().__init__(
            f"the prompt has {count} tokens, but this model holds {max_model_len} tokens "
            "of prompt and answer together: shorten the prompt",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.max_model_len = max_model_len


class InvalidConfig(LLMError, ValueError):
    """An engine setting that is out of bounds or cannot be met by this model."""


class MalformedLayout(InvalidConfig):
    """A text that names no layout; the message has the way to write one."""


class ModelNotFound(LLMError):
    """No weights under that name; the message lists what was tried."""


class UnsupportedModel(LLMError):
    """The files exist, but their format, architecture or contents are not supported."""


class QueueFull(LLMError):
    """The waiting queue is at its cap; trying again later may succeed."""

    def __init__(self, num_waiting: int, max_queued: int) -> None:
        """Keep both counts."""
        super().__init__(
            f"{num_waiting} requests are waiting and the queue holds {max_queued}: try again later"
        )
        self.num_waiting = num_waiting
        self.max_queued = max_queued


class RequestFailed(LLMError):
    """One request could not be continued; the message names the cause."""


class DeadlineExceeded(RequestFailed):
    """The request's own deadline passed before its last token."""


class EngineDead(LLMError):
    """The engine loop has ended, so no more events will come; the message names the cause."""
