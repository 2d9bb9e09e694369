"""transformers' `generate` as a contender: the GGUF unpacked, static batches of what waits.

Options: `gguf`, `threads`, `dtype` ("float32", "bfloat16"), `max_batch`. Keeping the GGUF packed
needs the distribution `kernels`, whose import name is ours: that form is not compared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from benchmarks.llm.child import Produced, options, serve_contender

_Waiting = tuple[int, Sequence[int], int]


class _Clock(BaseStreamer):
    """Notes every step's tokens and when they came; the first call brings the prompt."""

    def __init__(self) -> None:
        self.steps: list[tuple[list[int], float]] = []
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take one token of each sequence."""
        if self._has_prompt:
            self.steps.append((value.flatten().tolist(), time.perf_counter()))
        self._has_prompt = True

    def end(self) -> None:
        """Nothing is held back."""


class Transformers:
    """Serves what waits as one batch, padded on the left, to the longest answer asked for."""

    def __init__(self, given: dict[str, Any]) -> None:
        """Unpack the GGUF into a dense model."""
        torch.set_num_threads(given["threads"])
        gguf = Path(given["gguf"])
        self._max_batch: int = given["max_batch"]
        self._waiting: list[_Waiting] = []
        self._model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=getattr(torch, given["dtype"])
        ).eval()
        self.facts: dict[str, Any] = {
            "version": transformers.__version__,
            "form": "static batches of what waits",
            "reuses_prefixes": False,
            "dtype": given["dtype"],
        }

    @property
    def has_work(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def add(self, request_id: int, prompt: Sequence[int], max_tokens: int) -> None:
        """Queue a request for the next batch."""
        self._waiting.append((request_id, prompt, max_tokens))

    def step(self) -> list[Produced]:
        """Serve a batch to its end."""
        batch = self._waiting[: self._max_batch]
        del self._waiting[: self._max_batch]
        ids_BT, mask_BT = _padded([prompt for _, prompt, _ in batch])
        clock = _Clock()
        longest = max(max_tokens for _, _, max_tokens in batch)
        with torch.inference_mode():
            self._model.generate(
                ids_BT, attention_mask=mask_BT, max_new_tokens=longest, min_new_tokens=longest,
                do_sample=False, eos_token_id=None, pad_token_id=0, streamer=clock,
            )  # fmt: skip
        return [
            (request_id, [tokens[place]], at)
            for index, (tokens, at) in enumerate(clock.steps)
            for place, (request_id, _, max_tokens) in enumerate(batch)
            if index < max_tokens
        ]

    def num_cached(self, request_id: int) -> int | None:
        """Nothing is kept between batches."""
        return 0


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(prompt) for prompt in prompts)
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)


def main() -> None:
    """Serve orders."""
    given = options()
    serve_contender(lambda: Transformers(given))


if __name__ == "__main__":
    main()
