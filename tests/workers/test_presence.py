"""What a worker says of itself: choices and counters are read anew for every beat."""

from __future__ import annotations

import time
from typing import Any

from workers.presence import Presence
from workers.protocol import WorkerFacts, WorkerState
from workers.store.clock import utc_now


class Directory:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[WorkerFacts] = []

    def publish(self, facts: WorkerFacts) -> None:
        self.published.append(facts)

    def forget(self, worker_id: str) -> None:
        pass


def test_choices_made_while_requests_run_are_published() -> None:
    now = utc_now()
    facts = WorkerFacts(
        id="w", role="llm", model="m", state=WorkerState.LOADING, started_at=now, beat_at=now
    )
    directory, chosen = Directory(), [{"what": "overlap", "case": "256 tokens"}]

    def read() -> dict[str, Any]:
        return {"decisions": tuple(chosen), "stats": {"number": len(chosen)}}

    presence = Presence(directory, facts, utc_now)
    presence.start()
    presence.watch(read)
    for state in (WorkerState.IDLE, WorkerState.BUSY):
        presence.update(state=state)
        deadline_s = time.monotonic() + 20
        while directory.published[-1].state != state and time.monotonic() < deadline_s:
            time.sleep(0.02)
        said = directory.published[-1]
        assert (said.state, said.decisions) == (state, tuple(chosen))
        assert said.stats == {"number": len(chosen)}
        chosen.append({"what": "overlap", "case": "16 tokens"})
    presence.leave()
