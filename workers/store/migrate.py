"""Brings a database to the newest schema, also when several processes start at once."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from workers.errors import StoreUnusable
from workers.store.engine import Database

_SCRIPTS = Path(__file__).parent / "migrations"


def migrate(db: Database) -> None:
    """Upgrade `db` to the newest version in one transaction, under a lock.

    Raises:
        StoreUnusable: the database cannot be reached, or a newer lanewise has upgraded it.
    """
    try:
        with _file_lock(db.sqlite_file()), db.write() as conn:
            db.serialise(conn, "migrate")
            _upgrade(conn)
    except CommandError as error:
        raise StoreUnusable(
            f"The database has a schema that this version does not know ({error}); "
            "run the newest version of lanewise that has used it, or restore a backup."
        ) from error
    except OperationalError as error:
        raise StoreUnusable(
            f"The database {db.url.render_as_string()} cannot be opened: {error.orig}"
        ) from error


def alembic_config(conn: Connection) -> Config:
    """Configuration of alembic for an open connection; no ini file is needed."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = conn
    return config


def _upgrade(conn: Connection) -> None:
    config = alembic_config(conn)
    head = ScriptDirectory.from_config(config).get_current_head()
    if MigrationContext.configure(conn).get_current_revision() != head:
        command.upgrade(config, "head")


@contextmanager
def _file_lock(database: Path | None) -> Generator[None, None, None]:
    """Only one process at a time creates and upgrades a SQLite file."""
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(database.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
