"""vLLM's CPU build as a contender, on the weights unpacked by `benchmarks.peers.unpacked`.

Options: `folder`, `threads`, `dtype`, `max_model_len`, `max_num_seqs`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import vllm
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.llm.child import Produced, options, serve_contender


class Vllm:
    """The engine in this process, stepped by hand; prefix caching on, no text made."""

    def __init__(self, given: dict[str, Any]) -> None:
        """Load the model."""
        arguments = EngineArgs(
            model=given["folder"],
            dtype=given["dtype"],
            max_model_len=given["max_model_len"],
            max_num_seqs=given["max_num_seqs"],
            enable_prefix_caching=True,
            enforce_eager=given["eager"],
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._num_added = 0
        self._ids: dict[str, int] = {}
        self._cached: dict[int, int] = {}
        self.facts: dict[str, Any] = {
            "version": vllm.__version__,
            "form": "continuous batching, chunked prefill",
            "reuses_prefixes": True,
            "dtype": given["dtype"],
        }

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return self._engine.has_unfinished_requests()

    def add(self, request_id: int, prompt: Sequence[int], max_tokens: int) -> None:
        """Queue a request under an id that was never used before."""
        self._num_added += 1
        name = f"bench-{self._num_added}"
        self._ids[name] = request_id
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, min_tokens=max_tokens, ignore_eos=True,
            detokenize=False, output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)

    def step(self) -> list[Produced]:
        """One step of the engine."""
        outputs = self._engine.step()
        now = time.perf_counter()
        produced: list[Produced] = []
        for output in outputs:
            request_id = self._ids[output.request_id]
            self._cached[request_id] = output.num_cached_tokens or 0
            produced.append((request_id, list(output.outputs[0].token_ids), now))
        return produced

    def num_cached(self, request_id: int) -> int | None:
        """What the engine reports."""
        return self._cached.get(request_id)


def main() -> None:
    """Serve orders."""
    given = options()
    serve_contender(lambda: Vllm(given))


if __name__ == "__main__":
    main()
