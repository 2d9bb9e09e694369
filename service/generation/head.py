"""What an answer and all of its chunks have in common."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Self

from service.plan_header import fingerprint
from workers.protocol import WorkerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The fields that open every object of an answer; `created` is in seconds since 1970."""

    id: str
    created: int
    model: str
    fingerprint: str | None = None

    @classmethod
    def now(cls, answer_id: str, model: str, worker: WorkerFacts) -> Self:
        """That of an answer which `worker` begins to give for `model`, as the caller named it."""
        return cls(
            id=answer_id, created=int(time.time()), model=model, fingerprint=fingerprint(worker)
        )

    def fields(self, kind: str) -> dict[str, Any]:
        """The fields that open an answer or a chunk of the type `kind`."""
        fields: dict[str, Any] = {
            "id": self.id, "object": kind, "created": self.created, "model": self.model,
        }  # fmt: skip
        if self.fingerprint is not None:
            fields["system_fingerprint"] = self.fingerprint
        return fields
