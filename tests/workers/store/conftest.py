"""A store on SQLite and on PostgreSQL, with a clock that stands still until it is told to go."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.engine import make_url

from workers.protocol import Artifact, Job, JobLabels, VideoJobRequest
from workers.store import Store, open_store
from workers.store.engine import Database
from workers.store.tables import metadata

DEFAULT_POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"


@dataclass
class FakeClock:
    now: datetime = field(default=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Maker:
    """Short ways to make jobs; every argument but the interesting one has a value."""

    store: Store
    model: str = "motion"

    def request(self, *, model: str = "", prompt: str = "a cat") -> VideoJobRequest:
        return VideoJobRequest(
            model=model or self.model,
            image="file-00000000000000000000000000",
            prompt=prompt,
            seconds=1.0,
            fps=8.0,
            width=64,
            height=64,
            seed=1,
            steps=2,
        )

    def job(
        self, *, model: str = "", key_id: str = "key_a", batch_id: str | None = None, **labels
    ) -> Job:
        request = self.request(model=model)
        created = self.store.jobs.create(
            request, JobLabels(**labels), key_id=key_id, batch_id=batch_id, max_queued=100_000
        )
        return created.job

    def artifact(self, name: str = "video.mp4", path: str = "jobs/x/1/video.mp4") -> Artifact:
        return Artifact(name=name, media_type="video/mp4", bytes=3, sha256="0" * 64, path=path)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A database of its own, dropped at the end."""
    base = os.environ.get("LANEWISE_TEST_POSTGRES_URL", DEFAULT_POSTGRES)
    name = f"lanewise_test_{secrets.token_hex(6)}"
    try:
        with psycopg.connect(base, autocommit=True, connect_timeout=5) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.OperationalError as error:
        reason = f"PostgreSQL is not reachable at {base}: {error}"
        if os.environ.get("LANEWISE_TEST_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    yield make_url(base).set(database=name).render_as_string(hide_password=False)
    with psycopg.connect(base, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without a single table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    base = request.getfixturevalue("postgres_url")
    schema = f"empty_{secrets.token_hex(4)}"
    with psycopg.connect(base, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    yield f"{base}?options=-csearch_path%3D{schema}"
    with psycopg.connect(base, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database without rows, to be copied."""
    folder = tmp_path_factory.mktemp("template")
    open_store(f"sqlite:///{folder / 'store.db'}", str(folder)).close()
    return folder / "store.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database whose rows nobody needs."""
    if request.param == "sqlite":
        template = request.getfixturevalue("sqlite_template")
        return f"sqlite:///{shutil.copy(template, tmp_path / 'store.db')}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(database_url: str, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    with open_store(database_url, str(tmp_path / "artifacts"), clock=clock) as opened:
        yield opened
    wipe_rows(database_url)


@pytest.fixture
def make(store: Store) -> Maker:
    return Maker(store)


@pytest.fixture
def execute(database_url: str) -> Iterator[Callable[[sa.Executable], list[sa.Row]]]:
    """Runs a statement behind the store's back."""
    db = Database(database_url)

    def run(statement: sa.Executable) -> list[sa.Row]:
        with db.write() as conn:
            result = conn.execute(statement)
            return list(result.all()) if result.returns_rows else []

    yield run
    db.close()


@pytest.fixture
def wipe(database_url: str) -> Callable[[], None]:
    return lambda: wipe_rows(database_url)


def wipe_rows(database_url: str) -> None:
    db = Database(database_url)
    with db.write() as conn:
        for table in reversed(metadata.sorted_tables):
            conn.execute(sa.delete(table))
    db.close()
