"""A rank group as rank 0's engine sees it: met, sent commands to, and met anew after a loss."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from kernels.collectives.communicator import HostCommunicator, join
from kernels.collectives.errors import CollectiveError, MismatchedCall, RankLost
from kernels.collectives.lane import Lane
from kernels.collectives.renewable import RenewableCommunicator
from kernels.ledger import Ledger
from workers.deployment.child import RestartBudget
from workers.errors import GroupLost
from workers.ranks.child import knowledge_of
from workers.ranks.founding import Founding, GroupSpec
from workers.ranks.keeper import Keeper
from workers.ranks.leader import Leader
from workers.ranks.verdict import Verdict

_logger = logging.getLogger(__name__)
_POLL_S = 0.01
_CLOSE_S = 10.0
_MAX_RESTARTS_PER_MINUTE = 3


class RankGroup:
    """Ranks 1 and up as child processes of this one, which is rank 0.

    One thread, the engine's, calls `start`, `send` and `renew`; see `Keeper` for the other.
    Invariants: each epoch has fresh memory and fresh processes; what is sent in one is never seen
    in another. Before the first `wait_loaded`, a lost rank ends the start.
    """

    def __init__(
        self,
        spec: GroupSpec,
        *,
        budget: RestartBudget | None = None,
        on_leader_stalled: Callable[[Verdict], None] = lambda _: None,
    ) -> None:
        """Start nothing yet.

        `on_leader_stalled` hears, on the group's thread, that rank 0 itself does not move: nobody
        can free its thread, so the process should end.
        """
        self.ledger = Ledger()
        # The host's too where tensors are on devices: numbers and barriers stay with it.
        for device in dict.fromkeys(("cpu", spec.device)):
            knowledge_of(spec.data_dir, spec.num_ranks, self.ledger, device)
        for decision in self.ledger:
            if decision.remedy:
                _logger.warning("%s: %s; %s", decision.where, decision.reasons[0], decision.remedy)
        # Of its own: what an earlier process of the same number left must not be met.
        self._folder = tempfile.TemporaryDirectory(
            prefix="ranks-", dir=spec.folder, ignore_cleanup_errors=True
        )
        self._spec = replace(spec, folder=Path(self._folder.name))
        budget = budget or RestartBudget(_MAX_RESTARTS_PER_MINUTE, max_before_ready=0)
        self._keeper = Keeper(self._spec, budget, on_leader_stalled)
        self._epoch = -1
        self._usual_s: float | None = None
        self._communicator: RenewableCommunicator | None = None

    def start(self) -> RenewableCommunicator:
        """Start the followers and meet them; they then load, as rank 0 does.

        Raises: GroupLost, naming the rank and what became of it.
        """
        self._keeper.start()
        self._meet()
        return self.communicator

    def wait_loaded(self) -> None:
        """Wait until every follower waits for commands. Raises: GroupLost."""
        try:
            self._keeper.wait(lambda founding: founding.is_loaded, at_epoch=self._epoch)
        except RankLost as error:
            raise GroupLost(str(error)) from error
        self._keeper.is_ready = True

    def give_up(self, error: BaseException) -> NoReturn:
        """End a start that failed on this rank; close comes next. Raises: GroupLost, always."""
        self._keeper.accuse(self._epoch, error)
        verdict = self._keeper.wait_judged(self._epoch, _CLOSE_S)
        raise GroupLost(str(verdict or error)) from error

    @property
    def communicator(self) -> RenewableCommunicator:
        """The communicator of all ranks; it outlives epochs."""
        assert self._communicator is not None, "start comes first"
        return self._communicator

    @property
    def is_broken(self) -> bool:
        """Whether the ranks that were last met are gone, so that `renew` is due."""
        return self._keeper.is_over(self._epoch)

    def send(self, data: bytes) -> None:
        """Hand a command to all followers of this epoch.

        Raises: RankLost where one of them is known to be gone.
        """
        self._leader().send(data)

    def expect(self, duration_s: float | None) -> None:
        """Predict the next command's duration; None: nothing is known of it.

        Raises: RankLost, as `send`.
        """
        self._leader().expect(self._usual_s if duration_s is None else duration_s)

    @contextmanager
    def window(self, bound_s: float) -> Generator[None]:
        """Declare a warm-up: commands may take so long for now.

        How long it took stands in for the prediction of a step of which nothing is known yet.
        """
        begin_s = time.monotonic()
        self._keeper.window_s = bound_s
        try:
            yield
        finally:
            self._keeper.window_s = None
            self._usual_s = time.monotonic() - begin_s

    def renew(
        self, rejoin: Callable[[], None] = lambda: None, error: BaseException | None = None
    ) -> None:
        """Meet the ranks of the next epoch, once they are loaded; nothing of the old one remains.

        `rejoin` is rank 0's part of their loading; `error` is what an exchange of this epoch
        raised, if that is why.
        Raises: GroupLost when it was founded too often within a minute.
        """
        if error is not None:
            self._keeper.accuse(self._epoch, error)
        while True:
            self._meet()
            try:
                rejoin()
                self._keeper.wait(lambda founding: founding.is_loaded, at_epoch=self._epoch)
            except (CollectiveError, MismatchedCall) as again:
                self._keeper.accuse(self._epoch, again)
                continue
            return

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, plain values."""
        keeper = self._keeper
        founding, verdict = keeper.founding, keeper.verdict
        return {
            "ranks": {
                "size": self._spec.num_ranks,
                "epoch": self._epoch,
                "restarts_total": keeper.num_restarts,
            },
            "rank_state": "lost" if keeper.loss else "broken" if self.is_broken else "running",
            "rank_processes": founding.describe() if founding else [],
            "rank_last_verdict": str(verdict) if verdict else None,
        }

    def close(self) -> None:
        """Tell the followers to end, and see that they do."""
        self._keeper.begin_closing()
        try:
            self._leader().stop()
        except CollectiveError as error:
            _logger.info("the followers were not told to end: %s", error)
        self._keeper.stop(_CLOSE_S)
        if self._communicator is not None:
            self._communicator.close()
        self._folder.cleanup()

    def _leader(self) -> Leader:
        self._keeper.check(self._epoch)
        founding = self._keeper.founding
        if founding is None or founding.epoch != self._epoch:
            raise RankLost(f"epoch {self._epoch} is over: {self._keeper.verdict}")
        return founding.leader

    def _meet(self) -> None:
        while True:
            founding = self._keeper.wait(lambda founding: founding.has_arrived)
            try:
                communicator = self._join(founding)
            except (CollectiveError, MismatchedCall) as error:
                self._keeper.accuse(founding.epoch, error)
                continue
            founding.exchanges = communicator.fabric.board.steps
            self._epoch = founding.epoch
            if self._communicator is None:
                self._communicator = RenewableCommunicator(communicator)
            else:
                self._communicator.close()
                self._communicator.renew(communicator)
            return

    def _join(self, founding: Founding) -> HostCommunicator:
        """Meet, on a thread that is left behind when the epoch ends first.

        The store that ranks meet in cannot be told that one of them has died.
        """
        spec = self._spec
        knowledge = knowledge_of(spec.data_dir, spec.num_ranks)
        group = founding.order.group
        lane = Lane(f"rank-join-{founding.epoch}")
        on_device = knowledge_of(spec.data_dir, spec.num_ranks, device=spec.device)
        met = lane.start(
            lambda: join(
                group,
                ledger=self.ledger,
                knowledge=knowledge,
                place=founding.order.place,
                on_device=on_device,
            )
        )
        while not met.is_done():
            self._keeper.check(founding.epoch)
            time.sleep(_POLL_S)
        lane.close()
        communicator = met.wait()
        communicator.fabric.limit_waits(spec.wait_s)
        return communicator
