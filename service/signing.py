"""Signed URLs: whoever holds one may read one path until it expires."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

MAX_LIFETIME_S = 3600
_SECRET_BYTES = 32


class UrlSigner:
    """Signs `GET|path|key id|expiry` with HMAC-SHA256.

    Expiries are rounded up to the quarter hour, so that a list asked for twice carries the same
    addresses and a browser's cache holds.
    """

    def __init__(self, secret: bytes, *, clock: Callable[[], float] = time.time) -> None:
        """Take the secret and the clock."""
        self._secret = secret
        self._clock = clock

    def sign(self, path: str, *, key_id: str) -> str:
        """`path` with `exp`, `kid` and `sig`; valid for 45 minutes to one hour."""
        exp = (int(self._clock()) // 900) * 900 + MAX_LIFETIME_S
        query = urlencode({"exp": exp, "kid": key_id, "sig": self._mac(path, key_id, str(exp))})
        return f"{quote(path)}?{query}"

    def check(self, path: str, *, exp: str, key: str, sig: str) -> str | None:
        """The key id that a link was made for; None if expired, altered or too long-lived."""
        if not (exp.isascii() and exp.isdecimal() and len(exp) <= 12):
            return None
        now = self._clock()
        if not now <= int(exp) <= now + MAX_LIFETIME_S:
            return None
        expected, given = self._mac(path, key, exp).encode(), sig.encode("utf-8", "replace")
        return key if hmac.compare_digest(expected, given) else None

    def _mac(self, path: str, key_id: str, exp: str) -> str:
        text = f"GET|{path}|{key_id}|{exp}".encode("utf-8", "surrogatepass")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()[:40]


def load_secret(path: Path) -> bytes:
    """The secret kept at `path` (mode 0600), made on first use; safe when two processes race."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_SECRET_BYTES))
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was first: its secret counts
        finally:
            draft.unlink()
    return bytes.fromhex(path.read_text().strip())
