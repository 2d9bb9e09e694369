"""The keys that were verified a moment ago, so that not every request reads the database."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

from workers.shared_lookup import SharedLookup
from workers.store.keys import ApiKey

RECENT_S = 1.0


class RecentKeys:
    """Verified keys for `RECENT_S` seconds; only digests of their secrets are held.

    Requests that come at once with one key share its look-up. Invariants: a key that this process
    revokes is known no longer, not even by a look-up that was under way; one that is revoked
    elsewhere may be used for `RECENT_S` more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with none."""
        self._clock = clock
        self._keys: dict[bytes, tuple[ApiKey, float]] = {}
        self._num_revocations = 0
        self._lookups: SharedLookup[tuple[bytes, int], ApiKey | None] = SharedLookup()

    async def verified(
        self, secret: str, look_up: Callable[[], Coroutine[Any, Any, ApiKey | None]]
    ) -> ApiKey | None:
        """The key of `secret` as known, else as `look_up` finds it."""
        digest, epoch = hashlib.sha256(secret.encode()).digest(), self._num_revocations
        found = self._keys.get(digest)
        if found is not None and self._is_recent(found[1]):
            return found[0]
        key = await self._lookups.get((digest, epoch), look_up)
        if key is not None and epoch == self._num_revocations:
            recent = {d: k for d, k in self._keys.items() if self._is_recent(k[1])}
            self._keys = recent | {digest: (key, self._clock())}
        return key

    def forget(self) -> None:
        """A key was revoked."""
        self._num_revocations += 1
        self._keys = {}

    def _is_recent(self, verified_s: float) -> bool:
        return self._clock() - verified_s < RECENT_S
