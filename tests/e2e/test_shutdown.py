"""A service that is told to stop lets answers end, and says so to those that cannot."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from load_kit import Deployment, Heard, stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
STEP_S = 0.05


@pytest.fixture
def place() -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="lw-", ignore_cleanup_errors=True) as name:
        made = Deployment(Path(name), {"step_s": STEP_S})
        yield made
        made.close()


def test_answers_end_in_order_when_the_service_stops(place: Deployment) -> None:
    async def main() -> list[Heard]:
        port = place.settings.port
        # One ends within the time that a worker allows, the other would run for minutes.
        begun = {num: asyncio.Event() for num in (200, 5000)}
        tasks = [
            asyncio.create_task(stream(port, num, begun=event)) for num, event in begun.items()
        ]
        for event in begun.values():
            await asyncio.wait_for(event.wait(), 60)
        place.gateway.terminate()
        place.worker.terminate()
        return await asyncio.gather(*tasks)

    short, long = asyncio.run(main())
    assert short.is_whole
    assert short.text == "".join(f"{n} " for n in range(200))
    assert json.loads(long.events[-1])["error"]["code"] == "worker_stopping"
    assert place.gateway.wait(30) == 0
