"""Keys that were verified a moment ago: known for that moment, and never after a revocation."""

from __future__ import annotations

import asyncio

import pytest

from service.recent_keys import RECENT_S, RecentKeys
from workers.shared_lookup import SharedLookup
from workers.store.keys import ApiKey

pytestmark = pytest.mark.anyio
KEY = ApiKey("key_1", "n", "sk-", (), None, None, None)


class Database:
    """A look-up that is counted, and answers when it may."""

    def __init__(self) -> None:
        self.num_asked, self.key = 0, KEY
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def look_up(self) -> ApiKey | None:
        self.num_asked += 1
        key = self.key
        await self.may_answer.wait()
        return key


async def test_a_key_is_looked_up_once_for_a_moment_and_for_all_who_ask_at_once() -> None:
    now_s, database = 100.0, Database()
    keys = RecentKeys(clock=lambda: now_s)
    found = await asyncio.gather(*(keys.verified("s", database.look_up) for _ in range(32)))
    assert found == [KEY] * 32
    assert database.num_asked == 1
    now_s += RECENT_S * 0.9
    assert await keys.verified("s", database.look_up) == KEY
    assert database.num_asked == 1
    now_s += RECENT_S * 0.2
    assert await keys.verified("s", database.look_up) == KEY
    assert database.num_asked == 2


async def test_an_unknown_key_is_looked_up_each_time() -> None:
    keys, database = RecentKeys(), Database()
    database.key = None
    assert [await keys.verified("s", database.look_up) for _ in range(3)] == [None] * 3
    assert database.num_asked == 3


async def test_a_revocation_overtakes_a_look_up_that_is_under_way() -> None:
    keys, database = RecentKeys(), Database()
    database.may_answer.clear()
    early = asyncio.create_task(keys.verified("s", database.look_up))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    database.key = None  # revoked, while the early look-up has read the row already
    keys.forget()
    late = asyncio.create_task(keys.verified("s", database.look_up))
    await asyncio.sleep(0)
    database.may_answer.set()
    assert await early == KEY
    assert await late is None
    assert await keys.verified("s", database.look_up) is None


async def test_a_failed_look_up_fails_all_who_share_it_and_is_forgotten() -> None:
    lookups: SharedLookup[str, int] = SharedLookup()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise OSError("no database")

    async def answer() -> int:
        return 7

    found = await asyncio.gather(
        *(lookups.get("k", fail) for _ in range(3)), return_exceptions=True
    )
    assert [str(error) for error in found] == ["no database"] * 3
    assert await lookups.get("k", answer) == 7


async def test_a_caller_who_leaves_takes_nothing_from_the_others() -> None:
    lookups: SharedLookup[str, int] = SharedLookup()
    may_answer = asyncio.Event()

    async def answer() -> int:
        await may_answer.wait()
        return 7

    leaving, staying = (asyncio.create_task(lookups.get("k", answer)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    may_answer.set()
    assert await staying == 7
    with pytest.raises(asyncio.CancelledError):
        await leaving
