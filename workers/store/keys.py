"""API keys. Only a hash of each secret is kept."""

from __future__ import annotations

import builtins
import hashlib
import hmac
import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from workers.errors import KeyNotFound
from workers.store import tables
from workers.store.clock import Clock
from workers.store.engine import Database
from workers.store.ids import IdSource
from workers.store.text import check_text

_logger = logging.getLogger(__name__)
_SECRET_BYTES = 32
_PREFIX_CHARS = 8
_LAST_USED_STEP = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret; `prefix` is the part of the secret that people may see."""

    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class KeyStore:
    """Makes, checks and revokes API keys.

    Invariants: a secret is shown once, at its making; a revoked key never verifies again;
    `last_used_at` is exact to 60 s, so that reading does not mean writing.
    """

    def __init__(self, db: Database, clock: Clock, ids: IdSource) -> None:
        """Work on `db`."""
        self._db = db
        self._clock = clock
        self._ids = ids

    def create(self, name: str, scopes: Iterable[str]) -> tuple[ApiKey, str]:
        """A fresh key and its secret, which nothing can give back later.

        Raises:
            InvalidText: `name` or a scope holds a NUL or, for a scope, a space.
        """
        check_text("name", name)
        granted = tuple(dict.fromkeys(scopes))
        for scope in granted:
            check_text("scope", scope, is_word=True)
        secret = "sk-" + secrets.token_urlsafe(_SECRET_BYTES)
        key = ApiKey(
            id=self._ids.make("key_"),
            name=name,
            prefix=secret[:_PREFIX_CHARS],
            scopes=granted,
            created_at=self._clock(),
            last_used_at=None,
            revoked_at=None,
        )
        row = {"sha256": _digest(secret), "scopes": " ".join(granted)}
        fields = ("id", "name", "prefix", "created_at", "last_used_at", "revoked_at")
        row |= {field: getattr(key, field) for field in fields}
        with self._db.write() as conn:
            conn.execute(sa.insert(tables.api_keys).values(row))
        return key, secret

    def verify(self, secret: str) -> ApiKey | None:
        """The key of `secret`, or None when it is unknown or revoked.

        The time it takes says nothing about near misses: only hashes are looked up and compared.
        """
        digest = _digest(secret)
        keys = tables.api_keys
        with self._db.read() as conn:
            row = conn.execute(sa.select(keys).where(keys.c.sha256 == digest)).one_or_none()
        if row is None or not hmac.compare_digest(row.sha256, digest) or row.revoked_at is not None:
            return None
        return self._touch(_key(row))

    def list(self) -> builtins.list[ApiKey]:
        """All keys, revoked ones too, oldest first."""
        keys = tables.api_keys
        with self._db.read() as conn:
            return [_key(row) for row in conn.execute(sa.select(keys).order_by(keys.c.id))]

    def revoke(self, key_id: str) -> ApiKey:
        """End a key for ever; a second time changes nothing.

        Raises:
            KeyNotFound: there is no such key.
        """
        check_text("key_id", key_id)
        keys = tables.api_keys
        with self._db.write() as conn:
            revoke = sa.update(keys).where(keys.c.id == key_id, keys.c.revoked_at.is_(None))
            conn.execute(revoke.values(revoked_at=self._clock()))
            row = conn.execute(sa.select(keys).where(keys.c.id == key_id)).one_or_none()
        if row is None:
            raise KeyNotFound(key_id)
        return _key(row)

    def count_active(self) -> int:
        """How many keys would verify."""
        active = sa.select(sa.func.count()).where(tables.api_keys.c.revoked_at.is_(None))
        with self._db.read() as conn:
            return conn.execute(active).scalar_one()

    def _touch(self, key: ApiKey) -> ApiKey:
        now = self._clock()
        if key.last_used_at is not None and now - key.last_used_at < _LAST_USED_STEP:
            return key
        keys = tables.api_keys
        try:
            with self._db.write() as conn:
                conn.execute(sa.update(keys).where(keys.c.id == key.id).values(last_used_at=now))
        except OperationalError as error:  # a full disk must not lock everybody out
            _logger.warning("the use of key %s cannot be noted: %s", key.id, error.orig)
        return key


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _key(row: sa.Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        scopes=tuple(row.scopes.split()),
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
