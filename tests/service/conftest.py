"""A gateway over the real store, with a scripted model and no broker."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

sys.path.insert(0, str(Path(__file__).parent))

from gateway_kit import LLM, VIDEO, FakeClient, caller, publish_workers

from service.app import create_app
from workers.settings import Settings
from workers.store import Store, open_store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path / "data",
        llm_model=LLM,
        video_model=VIDEO,
        redis_url="redis://127.0.0.1:1/0",
        max_queued=50,
    )


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database without rows, to copy: migrating once is enough."""
    folder = tmp_path_factory.mktemp("template")
    open_store(f"sqlite:///{folder / 'lanewise.db'}", str(folder / "artifacts")).close()
    return folder / "lanewise.db"


@pytest.fixture
def store(settings: Settings, empty_database: Path) -> Iterator[Store]:
    settings.resolved_data_dir.mkdir(parents=True, exist_ok=True)
    shutil.copy(empty_database, settings.resolved_data_dir / "lanewise.db")
    with contextlib.closing(
        open_store(settings.resolved_database_url, settings.resolved_artifact_url)
    ) as store:
        publish_workers(store)
        yield store


@pytest.fixture
def client(settings: Settings, store: Store) -> FakeClient:
    return FakeClient(settings, store)


@pytest.fixture
def app(client: FakeClient, settings: Settings) -> FastAPI:
    return create_app(client, settings)


@pytest.fixture
def admin_key(store: Store) -> str:
    return store.keys.create("admin", ["admin"])[1]


@pytest.fixture
def user_key(store: Store) -> str:
    return store.keys.create("user", ["chat", "video", "read"])[1]


@pytest.fixture
async def http(app: FastAPI, user_key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A caller with a key that may chat and make videos."""
    async with app.router.lifespan_context(app), caller(app, user_key) as http:
        yield http


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
