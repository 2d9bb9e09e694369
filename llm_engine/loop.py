"""The engine on a thread of its own, with thread-safe handles for its callers."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from kernels.collectives.errors import CollectiveError, MismatchedCall
from llm_engine.engine import LLMEngine
from llm_engine.errors import EngineDead, InvalidRequest, LLMError, QueueFull
from llm_engine.parallel.commands import RenewableRanks
from llm_engine.prompt import PreparedRequest
from llm_engine.types import Finished, GenerationRequest, PromptScored, TextDelta

IDLE_S = 1.0  # without work for so long, memory is looked after and the books are checked
_LOG = logging.getLogger(__name__)


class _Cancelled:
    """The last item of a handle whose request was cancelled."""


_Item = TextDelta | PromptScored | Finished | LLMError | _Cancelled
T = TypeVar("T")
Listener = Callable[[TextDelta | PromptScored | Finished | LLMError | None], None]


class RequestHandle:
    """A caller's end of one request."""

    def __init__(self, request_id: str, loop: "EngineLoop", listener: Listener | None) -> None:
        """Made by `EngineLoop.submit`."""
        self.request_id = request_id
        self._loop = loop
        self._listener = listener
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()

    def events(self) -> Iterator[TextDelta | PromptScored | Finished]:
        """Wait for events and yield them; ends after `Finished`, or early after `cancel`.

        To be read once. Raises: EngineDead if the loop ends first, naming the cause;
        RequestFailed if this request broke.
        """
        while True:
            item = self._items.get()
            if isinstance(item, _Cancelled):
                return
            if isinstance(item, LLMError):
                raise item
            yield item
            if isinstance(item, Finished):
                return

    def cancel(self) -> None:
        """Stop the request within one step; does nothing once it has ended."""
        self._loop.cancel(self)

    def put(self, item: _Item) -> None:
        """Deliver an item; called by the loop."""
        if self._listener is None:
            self._items.put(item)
        else:
            self._listener(None if isinstance(item, _Cancelled) else item)


class EngineLoop:
    """Steps an engine for as long as there is work, and sleeps otherwise.

    Invariants: only the loop's thread touches the engine's state; every handle given out ends
    with `Finished`, an error, or its cancellation.
    """

    def __init__(self, engine: LLMEngine, ranks: RenewableRanks | None = None) -> None:
        """Take over an engine; nobody else may step it from now on.

        `ranks` are the other ranks of an engine over several: when they are lost they are
        brought back, and what ran is computed again from its tokens so far.
        """
        self.engine = engine
        self._ranks = ranks
        self._changed = threading.Condition()
        self._inbox: list[PreparedRequest] = []
        self._cancels: list[RequestHandle] = []
        self._handles: dict[str, RequestHandle] = {}
        self._num_waiting = 0
        self._is_stopping = False
        self._death: EngineDead | None = EngineDead("the engine loop has not been started")
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether requests are accepted."""
        with self._changed:
            return self._death is None

    def start(self) -> None:
        """Start the thread. A loop runs once."""
        assert self._thread is None, "a loop is started once"
        self._death = None
        self._thread = threading.Thread(target=self._run, name="llm-engine", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the thread after its current step, and the process that compiles grammars.

        Open handles raise EngineDead.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
        self.engine.preparer.close()

    def submit(self, request: GenerationRequest, listener: Listener | None = None) -> RequestHandle:
        """Check and queue a request; the caller's thread does the tokenising.

        `listener` gets each item on the loop's thread (None: cancelled) instead of the handle's
        `events`; it must be quick and must not raise.
        Raises: InvalidRequest, ContextLengthExceeded, QueueFull, EngineDead.
        """
        prepared = self.engine.prepare(request)
        with self._changed:
            if self._death is not None:
                raise EngineDead(str(self._death))
            num_waiting = self._num_waiting + _num_choices(self._inbox)
            if num_waiting >= self.engine.config.max_queued:
                raise QueueFull(num_waiting, self.engine.config.max_queued)
            if request.request_id in self._handles:
                raise InvalidRequest(
                    f"request_id {request.request_id!r} is in use: choose another",
                    param="request_id",
                )
            handle = RequestHandle(request.request_id, self, listener)
            self._handles[request.request_id] = handle
            self._inbox.append(prepared)
            self._changed.notify()
        return handle

    def cancel(self, handle: RequestHandle) -> None:
        """Cancel a request; one that has ended is no error."""
        with self._changed:
            self._cancels.append(handle)
            self._changed.notify()

    def _run(self) -> None:
        cause = "it was stopped"
        try:
            while self._take_orders():
                self._deliver(self._guarded(self.engine.step) or [])
        except BaseException as error:
            cause = f"{type(error).__name__}: {error}"
            _LOG.exception("the engine loop died")
            raise
        finally:
            self._end(cause)

    def _guarded(self, work: Callable[[], T]) -> T | None:
        """Do it; None when ranks were lost over it, and all that ran will be computed again."""
        try:
            return work()
        except (CollectiveError, MismatchedCall) as error:
            if self._ranks is None:
                raise
            self._begin_anew(self._ranks, error)
            return None

    def _begin_anew(self, ranks: RenewableRanks, error: Exception | None = None) -> None:
        self.engine.begin_anew()
        ranks.renew(self.engine.rejoin, error)

    def _take_orders(self) -> bool:
        """Wait for something to do, apply new requests and cancellations; false to stop."""
        is_checked = False
        while not self._wait(IDLE_S):
            if self._ranks is not None and self._ranks.is_broken:
                self._begin_anew(self._ranks)
            self._guarded(self.engine.tend)
            if not is_checked:
                self.engine.check_integrity()
                is_checked = True
        with self._changed:
            if self._is_stopping:
                return False
            arrivals, self._inbox = self._inbox, []
            cancels, self._cancels = self._cancels, []
            self._num_waiting = self.engine.num_waiting + _num_choices(arrivals)
        for prepared in arrivals:
            self._admit(prepared)
        for handle in cancels:
            # The id may belong to a later request by now, which is none of this handle's business.
            if self._handles.get(handle.request_id) is handle:
                self.engine.abort(handle.request_id)
                self._close(handle.request_id, _Cancelled())
        return True

    def _wait(self, timeout_s: float) -> bool:
        """Wait for orders or work; false when there were none for so long."""
        with self._changed:
            return self._changed.wait_for(self._has_orders, timeout_s)

    def _has_orders(self) -> bool:
        has_orders = bool(self._inbox or self._cancels)
        return has_orders or self._is_stopping or self.engine.has_work

    def _admit(self, prepared: PreparedRequest) -> None:
        try:
            self.engine.add_prepared(prepared)
        except LLMError as error:
            self._close(prepared.request.request_id, error)

    def _deliver(self, events: list[tuple[str, TextDelta | PromptScored | Finished]]) -> None:
        for request_id, event in events:
            if isinstance(event, Finished):
                self._close(request_id, event)
            else:
                self._handles[request_id].put(event)
        for request_id, failure in self.engine.take_failures():
            self._close(request_id, failure)

    def _close(self, request_id: str, item: _Item) -> None:
        with self._changed:
            handle = self._handles.pop(request_id, None)
        if handle is not None:
            handle.put(item)

    def _end(self, cause: str) -> None:
        death = EngineDead(f"the engine loop has ended: {cause}")
        with self._changed:
            self._death = death
            handles = list(self._handles.values())
            self._handles.clear()
        for handle in handles:
            handle.put(EngineDead(str(death)))


def _num_choices(prepared: list[PreparedRequest]) -> int:
    return sum(entry.request.params.n for entry in prepared)
