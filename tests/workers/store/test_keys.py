"""API keys."""

import re

import pytest
import sqlalchemy as sa

from workers.errors import InvalidText, KeyNotFound
from workers.store.engine import Database
from workers.store.ids import IdSource
from workers.store.keys import KeyStore
from workers.store.migrate import migrate
from workers.store.tables import api_keys


def test_a_secret_opens_its_own_key_only(store):
    first, secret = store.keys.create("first", ["jobs", "admin", "jobs"])
    second, other = store.keys.create("second", [])
    assert re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", secret)
    assert store.keys.verify(secret) == first
    assert store.keys.verify(other) == second
    assert (first.scopes, second.scopes) == (("jobs", "admin"), ())
    assert secret.startswith(first.prefix)


@pytest.mark.parametrize("secret", ["", "sk-", "' OR 1=1--", "\0", "\ud800", "x" * 100_000])
def test_other_texts_open_nothing(store, secret):
    store.keys.create("first", [])
    assert store.keys.verify(secret) is None


def test_the_secret_is_nowhere_in_the_database(store, execute):
    _key, secret = store.keys.create("first", [])
    (row,) = execute(sa.select(api_keys))
    assert not any(secret[10:] in str(value) for value in row)


def test_a_revoked_key_is_listed_but_opens_nothing(store, clock):
    key, secret = store.keys.create("first", [])
    store.keys.create("second", [])
    clock.advance(1)
    revoked_at = clock.now
    assert store.keys.revoke(key.id).revoked_at == revoked_at
    clock.advance(1)
    assert store.keys.revoke(key.id).revoked_at == revoked_at
    assert store.keys.verify(secret) is None
    assert [k.revoked_at for k in store.keys.list()] == [revoked_at, None]
    assert store.keys.count_active() == 1


def test_last_use_is_written_once_a_minute_at_most(store, clock):
    _key, secret = store.keys.create("first", [])
    first_use = clock.now
    store.keys.verify(secret)
    clock.advance(59)
    store.keys.verify(secret)
    assert store.keys.list()[0].last_used_at == first_use
    clock.advance(1)
    store.keys.verify(secret)
    assert store.keys.list()[0].last_used_at == clock.now


def test_a_key_opens_even_when_its_use_cannot_be_noted(tmp_path, clock, caplog):
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    migrate(db)
    keys = KeyStore(db, clock, IdSource(clock))
    _key, secret = keys.create("first", ["chat"])
    with db.read() as conn:
        conn.exec_driver_sql("PRAGMA query_only = ON")  # stays with the pool's one connection
    found = keys.verify(secret)
    assert found is not None
    assert found.scopes == ("chat",)
    assert "cannot be noted" in caplog.text
    db.close()


def test_unknown_keys_and_bad_texts_are_refused(store):
    with pytest.raises(KeyNotFound):
        store.keys.revoke("key_unknown")
    with pytest.raises(InvalidText, match="scope must be one word"):
        store.keys.create("name", ["two words"])
    with pytest.raises(InvalidText, match="name holds a NUL"):
        store.keys.create("\0", [])
