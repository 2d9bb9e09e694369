"""A disk without room: who asks is told so, and not that a worker was lost."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from sqlalchemy.exc import OperationalError

from workers.app import make_app
from workers.chat.client import ChatClient
from workers.chat.runner import ChatRunner
from workers.chat.stream import ChatLetter, ChatTiming, entry_fields, request_key
from workers.client import Client, NoWorker
from workers.errors import StorageFull
from workers.protocol import ChatParams, ChatRequest, WorkerFacts, WorkerState
from workers.settings import Settings
from workers.store import open_store
from workers.store.workers import WorkerDirectory

pytestmark = pytest.mark.anyio
TIMING = ChatTiming(alive_ttl_s=2, alive_refresh_s=0.1, silence_s=0.1)
ASKED = ChatRequest(id="chatcmpl-1", model="m", prompt_text="x", params=ChatParams())
FULL = f"-MISCONF Errors writing to the AOF file: {os.strerror(errno.ENOSPC)}\r\n"


@pytest.fixture
def anyio_backend():
    return "asyncio"


def living():
    now = datetime.now(UTC)
    return WorkerFacts(
        id="llm-1", role="llm", model="m", state=WorkerState.IDLE, started_at=now, beat_at=now
    )


def no_room():
    raise StorageFull


def there_is_room():
    pass


@asynccontextmanager
async def refusing_redis(folder, answer):
    """Something that answers every command so, on a socket; the first line says how many words."""

    async def serve(reader, writer):
        while line := await reader.readline():
            if line.startswith(b"*"):
                writer.write(answer.encode())
                await writer.drain()
        writer.close()

    path = folder / "redis.sock"
    async with await asyncio.start_unix_server(serve, path):
        yield f"unix://{path}?protocol=2"


async def heard(client, asked=ASKED):
    """The events of an answer."""
    events = []
    try:
        await asyncio.wait_for(client.run(asked, events.extend), timeout=30)
    finally:
        await client.close()
    return events


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (FULL, StorageFull),
        ("-MISCONF Errors writing to the AOF file: Input/output error\r\n", NoWorker),
    ],
    ids=["full", "broken"],
)
async def test_a_redis_that_finds_no_room_says_so(tmp_path, answer, error):
    async with refusing_redis(tmp_path, answer) as url:
        client = ChatClient(
            url, lambda: [living()], TIMING, check_room=there_is_room, max_waiting=9
        )
        with pytest.raises(error):
            await heard(client)


@pytest.mark.parametrize(
    ("check_room", "error"), [(no_room, StorageFull), (there_is_room, NoWorker)]
)
async def test_a_worker_that_cannot_note_its_beat_is_not_said_to_be_absent(
    place_of_module, check_room, error
):
    url = place_of_module.settings.redis_url
    client = ChatClient(url, list, TIMING, check_room=check_room, max_waiting=9)
    with pytest.raises(error):
        await heard(client)


@pytest.mark.parametrize(
    ("check_room", "code"), [(no_room, "storage_full"), (there_is_room, "worker_lost")]
)
async def test_an_answer_whose_worker_falls_silent_ends_with_the_cause(
    place_of_module, check_room, code
):
    url = place_of_module.settings.redis_url
    alive = [living()]
    client = ChatClient(url, lambda: alive, TIMING, check_room=check_room, max_waiting=9)

    async def take_and_fall_silent():
        async with Redis.from_url(url) as redis:
            while (raw := await redis.getdel(request_key(ASKED.id))) is None:
                await asyncio.sleep(0.02)
            letter = ChatLetter.model_validate_json(raw)
            await redis.xadd(letter.reply_to, entry_fields("llm-1", [(ASKED.id, 0, [])]))
        alive.clear()

    worker = asyncio.create_task(take_and_fall_silent())
    (event,) = await heard(client)
    await worker
    assert (event.type, event.status, event.code) == ("failed", 503, code)
    assert ("free some room" in event.message) is (code == "storage_full")


async def test_a_client_asks_its_redis_too(tmp_path):
    """Redis may lie on another disk than the database."""
    for answer, is_full in ((FULL, True), ("+OK\r\n", False)):
        async with refusing_redis(tmp_path, answer) as url:
            settings = Settings(data_dir=tmp_path / "data", redis_url=url)
            (tmp_path / "data").mkdir(exist_ok=True)
            client = Client.connect(settings)
            try:
                asked = asyncio.to_thread(client.check_room)
                if is_full:
                    with pytest.raises(StorageFull):
                        await asked
                else:
                    await asked
            finally:
                await client.aclose()


def test_a_worker_waits_for_a_redis_that_refuses():
    """Celery ends otherwise, and takes the loaded model with it."""
    app = make_app(Settings(), "redis://nowhere")
    assert app.conf.broker_channel_error_retry is True


def test_a_request_that_cannot_be_taken_is_left_for_later(caplog):
    """Its task ends as any other: the gateway sends the message again."""

    class Refusing:
        def pipeline(self, **_):
            raise ResponseError(FULL)

    runner = ChatRunner(None, Refusing(), None, on_busy=None, on_dead=None)
    runner.run("chatcmpl-1")
    assert "chatcmpl-1 cannot be taken" in caplog.text


def full_error():
    """What SQLAlchemy raises when SQLite has no room."""
    with sa.create_engine("sqlite://").connect() as conn:
        conn.exec_driver_sql("CREATE TABLE t (x)")
        conn.exec_driver_sql("PRAGMA max_page_count = 3")
        with pytest.raises(OperationalError) as caught:
            conn.exec_driver_sql("INSERT INTO t VALUES (zeroblob(100000))")
    return caught.value


class Failing:
    """A database whose writes fail with `error`."""

    def __init__(self, error):
        self.error = error

    @contextmanager
    def write(self):
        raise self.error
        yield


def test_the_directory_tells_no_room_from_other_trouble(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/x.db", str(tmp_path)) as store:
        store.workers.publish(living())
        before = store.workers.list()
        wal = tmp_path / "x.db-wal"
        num_bytes = wal.stat().st_size
        store.workers.check_room()
        assert store.workers.list() == before
        assert wal.stat().st_size > num_bytes  # it needed as much room as a beat does
    with pytest.raises(StorageFull):
        WorkerDirectory(Failing(full_error()), None).check_room()
    locked = OperationalError("x", None, Exception("database is locked"))
    with pytest.raises(OperationalError):
        WorkerDirectory(Failing(locked), None).check_room()
