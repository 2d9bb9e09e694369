"""Transactions, and which databases are taken."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import StatementError

from workers.errors import StoreUnusable
from workers.store import open_store
from workers.store.engine import Database
from workers.store.tables import api_keys


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("mysql://host/name", "'mysql' databases are not supported"),
        ("no url", "cannot be parsed"),
    ],
)
def test_unusable_urls_are_refused_with_the_reason(url, reason):
    with pytest.raises(StoreUnusable, match=reason):
        Database(url)


def test_an_unreachable_server_is_named_without_its_password(tmp_path):
    url = "postgresql://user:hunter2@127.0.0.1:1/name?connect_timeout=2"
    with pytest.raises(StoreUnusable, match=r"127\.0\.0\.1:1") as caught:
        open_store(url, str(tmp_path))
    assert "hunter2" not in str(caught.value)


def test_sqlite_is_set_up_for_several_processes(tmp_path):
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    pragmas = ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
    with db.read() as conn:
        values = [conn.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas]
    assert values == ["wal", 1, 2, 60_000]
    db.close()


def test_a_write_that_raises_leaves_nothing(store, database_url):
    db = Database(database_url)

    def write_and_raise():
        with db.write() as conn:
            conn.execute(sa.insert(api_keys).values(_key_row(datetime.now(UTC))))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_raise()
    assert store.keys.list() == []
    db.close()


def test_a_read_stays_on_its_snapshot(store, database_url):
    db = Database(database_url)
    count = sa.select(sa.func.count()).select_from(api_keys)
    with db.read() as conn:
        before = conn.execute(count).scalar_one()
        store.keys.create("in between", [])
        assert conn.execute(count).scalar() == before
    with db.read() as conn:
        assert conn.execute(count).scalar() == before + 1
    db.close()


def test_times_keep_their_instant_and_naive_ones_are_refused(store, database_url):
    db = Database(database_url)
    there = datetime(2026, 5, 4, 3, 2, 1, 999_999, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    with db.write() as conn:
        conn.execute(sa.insert(api_keys).values(_key_row(there)))
    (key,) = store.keys.list()
    assert key.created_at == there
    assert key.created_at.utcoffset() == timedelta(0)
    naive = _key_row(datetime(2026, 5, 4))
    with pytest.raises(StatementError, match="no time zone"), db.write() as conn:
        conn.execute(sa.insert(api_keys).values(naive))
    db.close()


def _key_row(created_at):
    texts = {"id": "key_1", "name": "n", "prefix": "p", "sha256": "s", "scopes": ""}
    return texts | {"created_at": created_at}
