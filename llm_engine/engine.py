"""The engine: add requests, step, read events. A step = schedule, run, sample, report.

Single-threaded; `loop.EngineLoop` gives it a thread of its own.
"""

import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from llm_engine.choice import Choice
from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.errors import InvalidRequest, QueueFull, RequestFailed
from llm_engine.kv_cache import PagePool
from llm_engine.loader import LoadedModel, load_model
from llm_engine.prompt import PreparedRequest, prepare
from llm_engine.runner import Runner
from llm_engine.sampler import Sampled, make_generator, sample
from llm_engine.scheduler import Scheduler
from llm_engine.sequence import Sequence as ScheduledSequence
from llm_engine.types import (
    EngineStats,
    Finished,
    GenerationRequest,
    TextDelta,
)

Event = tuple[str, TextDelta | Finished]
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _ActiveRequest:
    """A request between `add` and its last event."""

    num_prompt_tokens: int
    choices: list[Choice]
    num_completion_tokens: int = 0


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
        self._eos_token_ids = loaded.eos_token_ids
        self._pool = PagePool(decisions.capacity.num_pages, config.page_size)
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=config.max_num_seqs,
            prefill_chunk_tokens=config.prefill_chunk_tokens,
        )
        self._runner = Runner(loaded.model, self._pool, loaded.dtype, decisions.ops)
        self._requests: dict[str, _ActiveRequest] = {}
        self._choices: dict[int, Choice] = {}
        self._failures: list[tuple[str, RequestFailed]] = []
        self._num_seqs = 0
        self._num_generated = 0
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
        request = prepared.request
        if request.request_id in self._requests:
            raise InvalidRequest(
                f"request_id {request.request_id!r} is in use: choose another", param="request_id"
            )
        seed = secrets.randbits(63) if request.params.seed is None else request.params.seed
        choices = [self._make_choice(prepared, i, seed) for i in range(request.params.n)]
        self._requests[request.request_id] = _ActiveRequest(len(prepared.prompt_ids), choices)
        self._num_prompt += len(prepared.prompt_ids)
        for choice in choices:
            self._choices[choice.seq.seq_id] = choice
            self._scheduler.add(choice.seq)

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
        due = [self._choices[chunk.seq.seq_id] for chunk in plan.chunks if chunk.is_last]
        with torch.inference_mode():
            sampled = sample(logits_SV, [choice.sampler_row() for choice in due])
        return self._report(due, sampled)

    def abort(self, request_id: str) -> None:
        """Drop a request; its slots and pages are free at once. An unknown id is no error."""
        active = self._requests.pop(request_id, None)
        for choice in active.choices if active else ():
            self._drop(choice)

    def take_failures(self) -> list[tuple[str, RequestFailed]]:
        """Requests that broke since the last call; they yield no further events."""
        failures, self._failures = self._failures, []
        return failures

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
            generated_tokens_total=self._num_generated,
            prompt_tokens_total=self._num_prompt,
            preemptions_total=self._scheduler.num_preemptions,
            steps_total=self._num_steps,
        )

    def check_integrity(self) -> None:
        """Verify the page pool, and that an idle engine owns no page. Raises: AssertionError."""
        self._pool.check_integrity()
        if not self.has_work:
            assert self._pool.num_used == 0, f"{self._pool.num_used} pages leaked"
            assert not self._choices, f"{len(self._choices)} choices leaked"

    def _make_choice(self, prepared: PreparedRequest, index: int, seed: int) -> Choice:
        seq = ScheduledSequence(
            seq_id=self._num_seqs,
            token_ids=list(prepared.prompt_ids),
            num_prompt_tokens=len(prepared.prompt_ids),
            max_total_tokens=prepared.max_total_tokens,
            priority=prepared.request.priority,
        )
        self._num_seqs += 1
        return Choice(
            request_id=prepared.request.request_id,
            index=index,
            seq=seq,
            params=prepared.request.params,
            generator=make_generator(seed, index),
            tokenizer=self.tokenizer,
            eos_token_ids=self._eos_token_ids,
        )

    def _report(self, due: Sequence[Choice], sampled: Sequence[Sampled | None]) -> list[Event]:
        events: list[Event] = []
        for choice, token in zip(due, sampled, strict=True):
            if choice.request_id not in self._requests:
                continue
            if token is None:
                self._fail(choice.request_id, "the model's logits are not finite")
            else:
                events.extend(self._advance(choice, token))
        return events

    def _advance(self, choice: Choice, token: Sampled) -> list[Event]:
        active = self._requests[choice.request_id]
        delta = choice.advance(token)
        self._num_generated += 1
        active.num_completion_tokens += 1
        events: list[Event] = [(choice.request_id, delta)]
        if delta.finish_reason is not None:
            self._drop(choice)
            active.choices.remove(choice)
            if not active.choices:
                del self._requests[choice.request_id]
                finished = Finished(active.num_prompt_tokens, active.num_completion_tokens, 0)
                events.append((choice.request_id, finished))
        return events

    def _fail(self, request_id: str, cause: str) -> None:
        _LOG.error("request %s failed: %s", request_id, cause)
        self.abort(request_id)
        self._failures.append((request_id, RequestFailed(f"request {request_id}: {cause}")))

    def _drop(self, choice: Choice) -> None:
        self._scheduler.remove(choice.seq)
        del self._choices[choice.seq.seq_id]
