"""Many streams on one gateway: nothing lost, nothing refused, little added."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from load_kit import Deployment, Heard, cpu_s, stream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
STEP_S = 0.02


@pytest.fixture(scope="module")
def place() -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="lw-", ignore_cleanup_errors=True) as name:
        made = Deployment(Path(name), {"step_s": STEP_S})
        yield made
        made.close()


def expected(num: int) -> str:
    return "".join(f"{n} " for n in range(num))


def heard_from(place: Deployment, num_streams: int, num_tokens: int) -> list[Heard]:
    async def main() -> list[Heard]:
        port = place.settings.port
        return await asyncio.gather(*(stream(port, num_tokens) for _ in range(num_streams)))

    return asyncio.run(main())


def test_200_streams_at_once_lose_nothing(place: Deployment) -> None:
    for heard in heard_from(place, 200, 40):
        assert heard.status == 200
        assert heard.is_whole
        assert heard.text == expected(40)


def test_each_token_leaves_when_it_is_made(place: Deployment) -> None:
    heard = heard_from(place, 1, 50)[0]
    # Tokens that wait for others would come as few events, late.
    assert len(heard.events) > 25
    assert heard.first_s < heard.last_s / 3


def test_a_token_costs_the_worker_and_the_gateway_little(place: Deployment) -> None:
    heard_from(place, 4, 10)
    before = cpu_s(place.worker), cpu_s(place.gateway)
    num = 32 * 150
    assert all(heard.is_whole for heard in heard_from(place, 32, 150))
    worker_s, gateway_s = cpu_s(place.worker) - before[0], cpu_s(place.gateway) - before[1]
    # 50 µs and 150 µs on a quiet machine; a thread or a Redis command per token costs more.
    assert worker_s / num < 400e-6
    assert gateway_s / num < 1200e-6


def test_the_first_token_comes_soon(place: Deployment) -> None:
    async def main() -> list[float]:
        return sorted([(await stream(place.settings.port, 1)).first_s for _ in range(30)])

    heard_from(place, 2, 2)
    added_s = asyncio.run(main())[3] - STEP_S
    # The quickest tenth: what others do on the machine must not decide.
    assert added_s < 0.03


def test_readers_that_leave_free_their_slots(place: Deployment) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(stream(place.settings.port, 5000)) for _ in range(40)]
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    started_s = time.monotonic()
    assert heard_from(place, 32, 5)[0].is_whole
    assert time.monotonic() - started_s < 20
