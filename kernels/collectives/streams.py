"""A thread's current device, and the order of launches that share state on one. Unverified."""

from __future__ import annotations

import torch


def make_current(place: torch.device) -> None:
    """Make `place` what this thread launches on where no tensor says so; nothing on the CPU.

    Triton's kernels and mapped memory go by the current device, and each thread has its own.
    """
    if place.type != "cpu":
        torch.cuda.set_device(place)


def finish(place: torch.device) -> None:
    """Wait until the device has done what was asked of it; nothing on the CPU."""
    if place.type != "cpu":
        torch.cuda.synchronize(place)


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
