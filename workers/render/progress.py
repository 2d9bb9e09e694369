"""Progress of a render as the job store keeps it: never falling, with the time left."""

from __future__ import annotations

from collections.abc import Callable

from workers.protocol import JobProgress
from workers.render.eta import Eta

_WRITING_PERCENT = 95.0


class ProgressReport:
    """Turns the engine's steps into `JobProgress` and hands them on."""

    def __init__(self, report: Callable[[JobProgress], None]) -> None:
        """Hand every value to `report`."""
        self._report = report
        self._eta = Eta()
        self._percent = 0.0

    def step(self, stage: str, step: int, steps: int, percent: float) -> None:
        """`step` of `steps` of a stage are done; `percent` is of the whole job."""
        self._percent = min(max(self._percent, percent), 100.0)
        left_s = self._eta.seconds_left(str(stage), step, self._percent)
        self._report(
            JobProgress(
                stage=str(stage),
                step=step,
                steps=steps,
                percent=self._percent,
                eta_seconds=left_s,
            )
        )

    def writing(self) -> None:
        """The clip is there and its files are being written."""
        self.step("write", 0, 1, _WRITING_PERCENT)
