"""Deciding that a rank has stalled, from its row and its exchanges; pure, and told the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.ranks.heartbeat import Beat, Phase
from workers.ranks.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a rank may show no progress. Units: seconds.

    While a command is out: max(`factor` x the predicted time, `floor_s`), or `unpredicted_s` where
    nothing is predicted. While idle, ranks touch their rows four times a second: `idle_s`.
    `arrive_s` bounds the start of a process, `load_s` the reading of weights. Between two looks no
    more than `look_gap_s` counts, so that a watcher that was itself held up blames nobody.
    `leave_s` is what a survivor has to end by itself.
    """

    factor: float = 5.0
    floor_s: float = 2.0
    unpredicted_s: float = 60.0
    idle_s: float = 2.0
    arrive_s: float = 60.0
    load_s: float = 1800.0
    look_gap_s: float = 0.5
    leave_s: float = 2.0

    def step_s(self, expected_s: float | None) -> float:
        """The bound on a step that is predicted to take so long."""
        if expected_s is None:
            return self.unpredicted_s
        return max(self.factor * expected_s, self.floor_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything that is looked at, at one moment.

    `num_sent` commands are out, the last one predicted to take `expected_s`; `exchanges` counts
    each rank's steps on the group's board, 0 before the group has met. `window_s` is a declared
    bound in place of the prediction, for a warm-up.
    """

    now_s: float
    beats: Sequence[Beat]
    exchanges: Sequence[int]
    num_sent: int = 0
    expected_s: float | None = None
    window_s: float | None = None


class StallWatch:
    """Remembers when each rank last moved. One for each epoch.

    Among ranks that have stopped, the one that is behind is to blame: the others wait for it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._marks: dict[int, tuple[object, ...]] = {}
        self._frozen_s: dict[int, float] = {}
        self._last_s: float | None = None

    def look(self, sight: Sight) -> Verdict | None:
        """Take in what is seen; the verdict once somebody has not moved for too long."""
        self._age(sight)
        late = [
            beat
            for beat in sight.beats[1:]
            if self._frozen_s[beat.rank] > self._bound_s(beat, sight)
        ]
        if not late:
            return None
        waiting = [beat for beat in late if beat.phase != Phase.STEPPING]
        # Who has not even begun cannot be waiting for anybody.
        behind = waiting or late
        blamed = min(behind, key=lambda beat: sight.exchanges[beat.rank])
        if not waiting and sight.exchanges[0] < sight.exchanges[blamed.rank]:
            blamed = sight.beats[0]
        return self._verdict(blamed, late[0], sight)

    def frozen_s(self, rank: int) -> float:
        """How long a rank has not moved."""
        return self._frozen_s.get(rank, 0.0)

    def _age(self, sight: Sight) -> None:
        last_s = sight.now_s if self._last_s is None else self._last_s
        gap_s = min(sight.now_s - last_s, self._limits.look_gap_s)
        self._last_s = sight.now_s
        for beat in sight.beats:
            done = beat.rank > 0 and beat.done < sight.num_sent
            exchanges = sight.exchanges[beat.rank]
            # A command that arrives starts the clock anew.
            mark = (beat.phase, beat.begun, beat.done, beat.progress_ns, exchanges, done)
            has_moved = mark != self._marks.get(beat.rank)
            self._marks[beat.rank] = mark
            self._frozen_s[beat.rank] = (
                0.0 if has_moved else self._frozen_s.get(beat.rank, 0.0) + gap_s
            )

    def _bound_s(self, beat: Beat, sight: Sight) -> float:
        limits = self._limits
        if beat.phase in (Phase.ABSENT, Phase.ARRIVED):
            return limits.arrive_s
        if beat.phase == Phase.LOADING:
            return limits.load_s
        if beat.phase == Phase.IDLE and beat.done >= sight.num_sent:
            return limits.idle_s
        if sight.window_s is not None:
            return sight.window_s
        return limits.step_s(sight.expected_s)

    def _verdict(self, blamed: Beat, late: Beat, sight: Sight) -> Verdict:
        is_out = late.done < sight.num_sent or late.phase == Phase.STEPPING
        return Verdict(
            rank=blamed.rank,
            pid=blamed.pid,
            epoch=blamed.epoch,
            kind="stalled",
            doing=doing(blamed, sight.num_sent, sight.exchanges[blamed.rank]),
            elapsed_s=self._frozen_s[late.rank],
            bound_s=self._bound_s(late, sight),
            expected_s=sight.expected_s if is_out else None,
        )


def doing(beat: Beat, num_sent: int, exchanges: int) -> str:
    """What a rank is at, in words."""
    if beat.phase == Phase.STEPPING:
        return f"carrying out command {beat.begun}, at exchange {exchanges}"
    if beat.phase == Phase.IDLE and beat.rank > 0 and beat.done < num_sent:
        return f"due to begin command {beat.begun + 1} of {num_sent}"
    if beat.phase == Phase.IDLE:
        return f"waiting for commands, {beat.done} done"
    return {
        Phase.ABSENT: "starting its process",
        Phase.ARRIVED: "meeting the others",
        Phase.LOADING: "loading its part of the model",
    }.get(beat.phase, "ending")
