"""What can go wrong between a picture and its frames.

VideoError
├── InvalidVideoRequest (ValueError)   the caller's fault: names value, bound and way out
├── ModelNotFound                      no such folder, name or hub id
├── UnsupportedModel                   the folder holds a family this engine has no stages for
├── InvalidLayout (ValueError)         ranks that the model or this machine cannot be laid over
│   └── MalformedLayout                a layout's text that names no layout
├── WriteFailed                        the encoder or the check of the written file said no
└── Interrupted                        `should_stop` said so; nothing was written
"""


class VideoError(Exception):
    """Root of the room's errors."""


class InvalidVideoRequest(VideoError, ValueError):
    """A field of the request is out of bounds; `param` names it."""

    def __init__(self, message: str, *, param: str) -> None:
        """Keep the name of the field beside the message."""
        super().__init__(message)
        self.param = param


class ModelNotFound(VideoError):
    """The model's name, folder or hub id leads to no weights; the message lists what was tried."""


class UnsupportedModel(VideoError):
    """The folder is a diffusers folder, but of a family without stages here."""


class InvalidLayout(VideoError, ValueError):
    """A layout over ranks that cannot be had; the message says why, and the way out."""


class MalformedLayout(InvalidLayout):
    """A text that names no layout; the message has the way to write one."""


class WriteFailed(VideoError):
    """The clip could not be written; the message ends with the encoder's own words."""


class Interrupted(VideoError):
    """The run was stopped at a step or stage border, as asked."""
