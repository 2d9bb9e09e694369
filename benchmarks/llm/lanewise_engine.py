"""Our engine as a contender; started as `python -m benchmarks.llm.lanewise_engine OPTIONS`.

Options: `model`, `threads`, and `engine`: further fields of `EngineConfig`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.llm.child import Produced, options, serve_contender
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.types import ChatMessage, Finished, GenerationRequest, SamplingParams, TextDelta


class Lanewise:
    """One resident engine, stepped by hand."""

    def __init__(self, config: EngineConfig) -> None:
        """Load the model."""
        self._engine = LLMEngine.load(config)
        self._num_added = 0
        self._ids: dict[str, int] = {}
        self._cached: dict[int, int] = {}
        card = self._engine.card
        self.facts: dict[str, Any] = {
            "version": "this checkout",
            "form": "continuous batching, chunked prefill",
            "reuses_prefixes": config.prefix_cache,
            "dtype": card.dtype,
            "kernels": [list(kernel) for kernel in card.kernels],
            "num_parameters": card.num_parameters,
            "plan_hash": getattr(card, "plan_hash", ""),
            "decisions": [str(decision.as_dict()) for decision in self._engine.ledger],
        }

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._engine.has_work

    def add(self, request_id: int, prompt: Sequence[int] | str, max_tokens: int) -> None:
        """Queue a request under an id that was never used before; a text is a user's turn."""
        self._num_added += 1
        name = f"bench-{self._num_added}"
        self._ids[name] = request_id
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        if isinstance(prompt, str):
            request = GenerationRequest(name, (ChatMessage("user", prompt),), None, params)
        else:
            request = GenerationRequest(name, None, tuple(prompt), params)
        self._engine.add(request)

    def step(self) -> list[Produced]:
        """One step of the engine. Raises: RequestFailed if a request breaks."""
        events = self._engine.step()
        now = time.perf_counter()
        for _, failure in self._engine.take_failures():
            raise failure
        produced: list[Produced] = []
        for name, event in events:
            if isinstance(event, TextDelta) and event.token_ids:
                produced.append((self._ids[name], list(event.token_ids), now))
            elif isinstance(event, Finished):
                self._cached[self._ids.pop(name)] = event.cached_tokens
        return produced

    def num_cached(self, request_id: int) -> int | None:
        """What the engine says in its usage."""
        return self._cached.get(request_id)


def main() -> None:
    """Serve orders."""
    given = options()
    config = EngineConfig(
        model=given["model"], num_threads=given["threads"], **given.get("engine", {})
    )
    serve_contender(lambda: Lanewise(config))


if __name__ == "__main__":
    main()
