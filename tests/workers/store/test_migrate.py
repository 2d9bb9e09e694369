"""Schema versions: from nothing, twice, by many at once, and from the future."""

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import workers
from workers.errors import StoreUnusable
from workers.store import open_store
from workers.store.engine import Database
from workers.store.migrate import migrate
from workers.store.tables import metadata

ROOT = Path(workers.__file__).parents[1]
OPEN = """
import sys
from workers.store import open_store
with open_store(sys.argv[1], sys.argv[2]) as store:
    store.keys.create(sys.argv[3], ["jobs"])
"""


def test_migrations_build_the_tables_of_the_metadata(empty_url):
    db = Database(empty_url)
    migrate(db)
    with db.read() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    db.close()


def test_the_comparison_sees_a_missing_index(empty_url):
    db = Database(empty_url)
    migrate(db)
    with db.write() as conn:
        conn.execute(sa.text("DROP INDEX ix_jobs_claim"))
    with db.read() as conn:
        ((what, index),) = compare_metadata(MigrationContext.configure(conn), metadata)
    assert (what, index.name) == ("add_index", "ix_jobs_claim")
    db.close()


def test_opening_again_keeps_the_rows(empty_url, tmp_path):
    with open_store(empty_url, str(tmp_path)) as store:
        key, _secret = store.keys.create("first", [])
    with open_store(empty_url, str(tmp_path)) as store:
        assert [found.id for found in store.keys.list()] == [key.id]


def test_processes_may_open_an_empty_database_at_the_same_time(empty_url, tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, empty_url, str(tmp_path / "files"), f"process {number}"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    errors = [process.communicate(timeout=200)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    with open_store(empty_url, str(tmp_path / "files")) as store:
        assert sorted(key.name for key in store.keys.list()) == [f"process {n}" for n in range(3)]


def test_a_newer_schema_is_refused_and_left_alone(empty_url, tmp_path):
    open_store(empty_url, str(tmp_path)).close()
    db = Database(empty_url)
    with db.write() as conn:
        conn.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreUnusable, match=r"does not know.*newest version of lanewise"):
        open_store(empty_url, str(tmp_path))
    with db.read() as conn:
        assert conn.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    db.close()
