"""The order of launches that share state on a device, whichever streams they are issued to."""

from __future__ import annotations

import torch


class StreamOrder:
    """Streams one after the other. Unverified on devices."""

    def __init__(self) -> None:
        self._last: torch.cuda.Stream | None = None

    def changes_stream(self) -> bool:
        """Make the current stream wait for the last one, and say whether they differ."""
        stream, last = torch.cuda.current_stream(), self._last
        self._last = stream
        if last is None or stream == last:
            return False
        stream.wait_stream(last)
        return True
