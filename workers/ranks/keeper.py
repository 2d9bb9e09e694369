"""The thread that founds a group's epochs, judges their ranks, and ends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kernels.collectives.errors import CollectiveError, RankLost
from workers.deployment.child import RestartBudget
from workers.errors import GroupLost
from workers.ranks.founding import Founding, GroupSpec
from workers.ranks.verdict import Verdict

_logger = logging.getLogger(__name__)
_LOOK_S = 0.05
_POLL_S = 0.01


class Keeper:
    """Keeps one epoch running at a time; every other thread asks it.

    Processes belong to the thread that starts them, and end with it. Invariants: an epoch ends
    once, with a verdict; its followers are gone before the next epoch begins.
    """

    def __init__(
        self,
        spec: GroupSpec,
        budget: RestartBudget,
        on_leader_stalled: Callable[[Verdict], None],
    ) -> None:
        """Start nothing yet; see `RankGroup`."""
        self.is_ready = False
        self.window_s: float | None = None
        self.num_restarts = 0
        self.loss = ""
        self.verdict: Verdict | None = None
        self.founding: Founding | None = None
        self._spec, self._budget = spec, budget
        self._on_leader_stalled = on_leader_stalled
        self._changed = threading.Condition()
        self._broken_epoch = -1
        self._report: tuple[int, BaseException] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)

    def start(self) -> None:
        """Found epoch 0."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Let the followers end by themselves for a moment, then end them."""
        if self._thread.is_alive():
            self._thread.join(self._spec.limits.leave_s + timeout_s)

    def begin_closing(self) -> None:
        """From now on, a follower that ends is no loss."""
        self._closing.set()

    def accuse(self, epoch: int, error: BaseException) -> None:
        """An exchange of this epoch failed: it cannot go on, whatever else is seen."""
        with self._changed:
            if epoch > self._broken_epoch:
                self._report = (epoch, error)
                self._broken_epoch = epoch

    def is_over(self, epoch: int) -> bool:
        """Whether this epoch has ended."""
        with self._changed:
            return bool(self.loss) or epoch <= self._broken_epoch

    def check(self, epoch: int) -> None:
        """Raises: RankLost with the verdict, where this epoch has ended."""
        if self.is_over(epoch):
            raise RankLost(f"epoch {epoch} is over: {self.verdict or self.loss}")

    def wait_judged(self, epoch: int, timeout_s: float) -> Verdict | None:
        """The verdict on an epoch, once there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_judged(epoch), timeout_s)
            return self.verdict

    def wait(self, is_so: Callable[[Founding], bool], at_epoch: int | None = None) -> Founding:
        """The newest founding, once it is so; with an epoch, of that one alone.

        Raises: GroupLost; RankLost when that epoch is over.
        """
        while True:
            with self._changed:
                if self.loss:
                    raise GroupLost(self.loss)
                founding, broken = self.founding, self._broken_epoch
            if at_epoch is not None:
                self.check(at_epoch)
            if founding is not None and founding.epoch > broken and is_so(founding):
                return founding
            time.sleep(_POLL_S)

    def _is_judged(self, epoch: int) -> bool:
        return self.verdict is not None and self.verdict.epoch >= epoch

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException as error:
            self._lose(f"the watch over the ranks failed: {type(error).__name__}: {error}")
            raise
        self._lose("the group was closed")

    def _keep(self) -> None:
        epoch = 0
        while not self._closing.is_set():
            try:
                founding = Founding(self._spec, epoch, self.check)
            except OSError as error:
                self._lose(f"the followers of epoch {epoch} cannot be started: {error}")
                return
            with self._changed:
                self.founding = founding
            verdict = None
            try:
                verdict = self._judge(founding)
            finally:
                self._end(founding, verdict)
            if verdict is None or not self._may_go_on(verdict):
                return
            epoch += 1

    def _judge(self, founding: Founding) -> Verdict | None:
        """Look until there is a verdict; None when the group is closed."""
        while not self._closing.is_set():
            verdict = founding.watch(_LOOK_S, self.window_s)
            if self._closing.is_set():
                break
            if verdict is not None:
                return verdict
            with self._changed:
                report = self._report
            if report is not None and report[0] == founding.epoch:
                ranks = report[1].ranks if isinstance(report[1], CollectiveError) else ()
                detail = f"{type(report[1]).__name__}: {report[1]}"
                return founding.disagreement(ranks, detail)
        return None

    def _end(self, founding: Founding, verdict: Verdict | None) -> None:
        with self._changed:
            self.founding = None
            if verdict is not None:
                self.verdict = verdict
                self._broken_epoch = founding.epoch
            self._changed.notify_all()
        if verdict is not None:
            _logger.error("%s", verdict)
        founding.end(None if verdict is None else verdict.rank)

    def _may_go_on(self, verdict: Verdict) -> bool:
        if verdict.rank == 0:
            self._lose(f"rank 0 cannot go on: {verdict}")
            self._on_leader_stalled(verdict)
            return False
        delay_s = self._budget.next_delay_s(time.monotonic(), is_ready=self.is_ready)
        if delay_s is None:
            self._lose(f"the ranks were lost too often, the last time: {verdict}")
            return False
        self._closing.wait(delay_s)
        self.num_restarts += 1
        _logger.warning("founding the ranks anew with epoch %d", verdict.epoch + 1)
        return True

    def _lose(self, reason: str) -> None:
        with self._changed:
            self.loss = self.loss or reason
            self._changed.notify_all()
