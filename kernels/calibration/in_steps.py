"""What a step of many nodes takes beyond the sum of what was measured of each part alone."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.calibration.work import Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class InSteps:
    """Constants of whole steps, fitted to steps of other shapes than any that is predicted.

    `computing` is a stretch between two collectives on the busier rank, with the terms (seconds
    of its works' calls alone, seconds of the rest of them, number of nodes): inside a step a call
    is reached through the layer's own code and follows other work than where it was measured,
    data is colder, and ranks are not equally fast.
    `meeting` is all that passes between a stretch and the next, with the terms (seconds of the
    collective alone, 1): two changes of thread, and ranks that come apart.
    """

    computing: Fit
    meeting: Fit

    def computing_s(self, calls_s: float, rest_s: float, num_nodes: int = 1) -> float:
        """What works take in a step whose calls, and the rest of them, take so long alone."""
        return self.computing.seconds((calls_s, rest_s, float(num_nodes)))

    def meeting_s(self, alone_s: float) -> float:
        """What a collective takes in a step that takes `alone_s` where ranks come together."""
        return self.meeting.seconds((alone_s, 1.0))


# Where nothing was practised: a step is the sum of its parts.
SUM_OF_PARTS = InSteps(
    computing=Fit(constants=(1.0, 1.0, 0.0), error=0.0, num_samples=0),
    meeting=Fit(constants=(1.0, 0.0), error=0.0, num_samples=0),
)
COMPUTING_UNITS = ("second of calls alone", "second of the rest", "node")
MEETING_UNITS = ("second alone", "collective")
