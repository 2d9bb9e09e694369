"""llama.cpp as a contender, through the low-level interface of llama-cpp-python.

Options: `gguf`, `threads`, `flash_attention` (bool), `num_slots`, `slot_tokens`, `long_tokens`.
Serves as its own server does: slots with a sequence each; a step takes one token of every answer
under way, then as much of the waiting prompts as fits into a batch of 512; an ended slot keeps its
tokens, and a request goes to the free slot that shares the longest prefix with it. A request
longer than a slot goes to a context of one long slot.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp as lib
import numpy

from benchmarks.llm.child import Produced, options, serve_contender

BATCH_TOKENS = 512


@dataclass(slots=True)
class _Slot:
    """A sequence of the context: the tokens in its cache, and the request it serves."""

    seq_id: int
    cached: list[int] = field(default_factory=list[int])
    request_id: int | None = None
    to_feed: list[int] = field(default_factory=list[int])
    num_left: int = 0
    is_prompt: bool = False


class _Pool:
    """A context with slots, each with its own part of the cache; greedy by argmax."""

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - a ctypes pointer
        num_slots: int,
        slot_tokens: int,
        given: dict[str, Any],
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = num_slots * slot_tokens
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = num_slots
        params.n_threads = params.n_threads_batch = given["threads"]
        params.kv_unified = False
        params.flash_attn_type = 1 if given["flash_attention"] else 0
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"no context of {num_slots} × {slot_tokens} tokens")
        self._vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._slots = [_Slot(seq_id) for seq_id in range(num_slots)]
        self.waiting: list[tuple[int, list[int], int]] = []
        self.num_cached: dict[int, int] = {}

    @property
    def has_work(self) -> bool:
        """Whether a request waits or is under way."""
        return bool(self.waiting) or any(s.request_id is not None for s in self._slots)

    def step(self) -> list[Produced]:
        """Decode one batch."""
        self._assign()
        rows = self._fill()
        if (code := lib.llama_decode(self._context, self._batch)) != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        chosen = [(slot, self._argmax(row)) for slot, row in rows]
        now = time.perf_counter()
        produced: list[Produced] = []
        for slot, token in chosen:
            assert slot.request_id is not None
            produced.append((slot.request_id, [token], now))
            slot.num_left, slot.to_feed, slot.is_prompt = slot.num_left - 1, [token], False
            if slot.num_left == 0:
                slot.request_id, slot.to_feed = None, []
        return produced

    def _assign(self) -> None:
        while self.waiting:
            free = [slot for slot in self._slots if slot.request_id is None]
            if not free:
                return
            request_id, prompt, max_tokens = self.waiting.pop(0)
            slot = max(free, key=lambda s: (_shared(s.cached, prompt), -len(s.cached)))
            kept = min(_shared(slot.cached, prompt), len(prompt) - 1)
            lib.llama_memory_seq_rm(self._memory, slot.seq_id, kept, -1)
            slot.cached = slot.cached[:kept]
            slot.request_id, slot.to_feed = request_id, prompt[kept:]
            slot.num_left, slot.is_prompt = max_tokens, True
            self.num_cached[request_id] = kept

    def _fill(self) -> list[tuple[_Slot, int]]:
        """Put answers first, then prompts, into the batch.

        Returns: the slots whose next token is due, with the row of its logits.
        """
        busy = [slot for slot in self._slots if slot.request_id is not None]
        rows: list[tuple[_Slot, int]] = []
        self._batch.n_tokens = 0
        for slot in sorted(busy, key=lambda s: s.is_prompt):
            piece = slot.to_feed[: BATCH_TOKENS - self._batch.n_tokens]
            for token in piece:
                self._put(slot, token)
            del slot.to_feed[: len(piece)]
            if piece and not slot.to_feed:
                last = self._batch.n_tokens - 1
                self._batch.logits[last] = True
                rows.append((slot, last))
        return rows

    def _put(self, slot: _Slot, token: int) -> None:
        place = self._batch.n_tokens
        self._batch.token[place] = token
        self._batch.pos[place] = len(slot.cached)
        self._batch.n_seq_id[place] = 1
        self._batch.seq_id[place][0] = slot.seq_id
        self._batch.logits[place] = False
        self._batch.n_tokens = place + 1
        slot.cached.append(token)

    def _argmax(self, row: int) -> int:
        logits = lib.llama_get_logits_ith(self._context, row)
        return int(numpy.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())


class LlamaCpp:
    """A model with a context of many slots and one of a single long slot."""

    def __init__(self, given: dict[str, Any]) -> None:
        """Map the file and make the contexts."""
        lib.llama_backend_init()
        model = lib.llama_model_load_from_file(
            given["gguf"].encode(), lib.llama_model_default_params()
        )
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {given['gguf']}")
        self._slot_tokens: int = given["slot_tokens"]
        self._short = _Pool(model, given["num_slots"], given["slot_tokens"], given)
        self._long = _Pool(model, 1, given["long_tokens"], given)
        self.facts: dict[str, Any] = {
            "version": lib.__version__,
            "form": "continuous batching over slots, as llama-server",
            "reuses_prefixes": True,
            "system": lib.llama_print_system_info().decode(),
        }

    @property
    def has_work(self) -> bool:
        """Whether a request waits or is under way."""
        return self._short.has_work or self._long.has_work

    def add(self, request_id: int, prompt: Sequence[int], max_tokens: int) -> None:
        """Queue a request."""
        fits = len(prompt) + max_tokens <= self._slot_tokens
        pool = self._short if fits else self._long
        pool.waiting.append((request_id, list(prompt), max_tokens))

    def step(self) -> list[Produced]:
        """Decode one batch of each context that has work."""
        pools = [pool for pool in (self._short, self._long) if pool.has_work]
        return [produced for pool in pools for produced in pool.step()]

    def num_cached(self, request_id: int) -> int | None:
        """Tokens of the prompt that its slot held already."""
        found = self._short.num_cached.pop(request_id, None)
        return self._long.num_cached.pop(request_id, None) if found is None else found


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    for count, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return count
    return min(len(left), len(right))


def main() -> None:
    """Serve orders."""
    given = options()
    serve_contender(lambda: LlamaCpp(given))


if __name__ == "__main__":
    main()
