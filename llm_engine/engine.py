"""The engine: add requests, step, read events. A step = schedule, run, sample, report.

Single-threaded; `loop.EngineLoop` gives it a thread of its own.
"""

from collections.abc import Iterable
from typing import Self

import torch

from llm_engine.answers import Answers, Event
from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.errors import QueueFull, RequestFailed
from llm_engine.kv_cache import PagePool
from llm_engine.loader import LoadedModel, load_model
from llm_engine.prompt import PreparedRequest, prepare
from llm_engine.runner import Runner
from llm_engine.scheduler import Scheduler
from llm_engine.types import EngineStats, GenerationRequest


class LLMEngine:
    """A model with its cache and its queue.

    Invariants: every request added yields deltas for each choice and then one `Finished`, unless
    it is aborted or fails; `check_integrity` holds between steps; `ledger` says which
    implementation runs each op, and why.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        """Decide, then allocate the cache.

        Raises: InvalidConfig, ImplUnavailable, StrictRefusal: see `llm_engine.decisions.decide`.
        """
        decisions = decide(config, loaded.model.config, loaded.dtype)
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self.config = config
        self.tokenizer = loaded.tokenizer
        self.card = loaded.card(decisions, config.page_size)
        self.ledger = decisions.ledger
        self._answers = Answers(loaded.tokenizer, loaded.eos_token_ids)
        self._pool = PagePool(decisions.capacity.num_pages, config.page_size)
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=config.max_num_seqs,
            prefill_chunk_tokens=config.prefill_chunk_tokens,
        )
        self._runner = Runner(loaded.model, self._pool, loaded.dtype, decisions.ops)
        self._num_prompt = 0
        self._num_steps = 0

    @classmethod
    def load(cls, config: EngineConfig) -> Self:
        """Find and read the model, then build the engine.

        Raises: ModelNotFound, UnsupportedModel, InvalidConfig; ImplUnavailable and StrictRefusal
            before a weight is read.
        """
        return cls(load_model(config), config)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work

    @property
    def num_waiting(self) -> int:
        """Choices that have no slot yet."""
        return self._scheduler.num_waiting

    def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Tokenise and check a request without queueing it. Safe to call from any thread.

        Raises: InvalidRequest, ContextLengthExceeded.
        """
        return prepare(
            request,
            self.tokenizer,
            vocab_size=self.card.vocab_size,
            max_model_len=self.card.max_model_len,
        )

    def add(self, request: GenerationRequest) -> None:
        """Check a request and queue it.

        Raises: InvalidRequest, ContextLengthExceeded, QueueFull.
        """
        prepared = self.prepare(request)
        if self.num_waiting >= self.config.max_queued:
            raise QueueFull(self.num_waiting, self.config.max_queued)
        self.add_prepared(prepared)

    def add_prepared(self, prepared: PreparedRequest) -> None:
        """Queue a checked request, whatever the cap. Raises: InvalidRequest for an id in use."""
        seqs = self._answers.open(prepared)
        self._num_prompt += len(prepared.prompt_ids)
        for seq in seqs:
            self._scheduler.add(seq)

    def step(self) -> list[Event]:
        """Compute one step and return what it produced, in order; nothing when there is no work."""
        plan = self._scheduler.schedule()
        if not plan.chunks:
            return []
        self._num_steps += 1
        logits_SV = self._runner.run(plan.chunks)
        for chunk in plan.chunks:
            self._scheduler.commit(chunk)
        if logits_SV is None:
            return []
        events = self._answers.advance(plan.chunks, logits_SV)
        self._free_ended()
        return events

    def abort(self, request_id: str) -> None:
        """Drop a request; its slots and pages are free at once. An unknown id is no error."""
        self._answers.drop(request_id)
        self._free_ended()

    def take_failures(self) -> list[tuple[str, RequestFailed]]:
        """Requests that broke since the last call; they yield no further events."""
        return self._answers.take_failures()

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Event]:
        """Serve requests to the end and return all events. Raises: RequestFailed if one breaks."""
        for request in requests:
            self.add(request)
        events: list[Event] = []
        while self.has_work:
            events.extend(self.step())
            for _, failure in self.take_failures():
                raise failure
        return events

    def stats(self) -> EngineStats:
        """Counts at this moment."""
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            kv_pages_used=self._pool.num_used,
            kv_pages_total=self._pool.num_pages,
            generated_tokens_total=self._answers.num_generated,
            prompt_tokens_total=self._num_prompt,
            preemptions_total=self._scheduler.num_preemptions,
            steps_total=self._num_steps,
        )

    def check_integrity(self) -> None:
        """Verify the page pool, and that an idle engine owns no page. Raises: AssertionError."""
        self._pool.check_integrity()
        if not self.has_work:
            assert self._pool.num_used == 0, f"{self._pool.num_used} pages leaked"
            num_choices = self._answers.num_choices
            assert num_choices == 0, f"{num_choices} choices leaked"

    def _free_ended(self) -> None:
        for seq in self._answers.take_ended():
            self._scheduler.remove(seq)
