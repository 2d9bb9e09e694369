"""The engine: add requests, step, read events.

A step = expire, draft, schedule, run, advance, commit, free. Single-threaded; `loop.EngineLoop`
gives it a thread of its own.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, Self

import torch

from kernels.hardware.host_memory import MachineMemory
from llm_engine.answers.answers import Answers, Event
from llm_engine.assembly import (
    build_cache,
    build_keepers,
    build_runner,
    build_sampler,
    build_scheduler,
)
from llm_engine.cache.report import cache_counts, describe_cache
from llm_engine.config import EngineConfig
from llm_engine.decisions import decide, plan_hash
from llm_engine.errors import QueueFull, RequestFailed
from llm_engine.loader import LoadedModel, load_model
from llm_engine.memory.ledger import MemoryLedger
from llm_engine.memory.workspace import STEP
from llm_engine.parallel.commands import Ranks
from llm_engine.parallel.seat import Seat
from llm_engine.prompt import PreparedRequest, Preparer
from llm_engine.speculation.decision import decide_speculation, make_speculator
from llm_engine.types import EngineStats, GenerationRequest
from llm_engine.warm_up import measure_step


class LLMEngine:
    """A model with its cache and its queue.

    Invariants: every request added yields deltas for each choice and then one `Finished`, unless
    it is aborted or fails; `check_integrity` holds between steps; `ledger` says which
    implementation runs each op, and why; `memory` where the memory beside the cache goes.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        read_memory: Callable[[], MachineMemory] | None = None,
        seat: Seat | None = None,
    ) -> None:
        """Decide, then reserve the cache. Units: `clock` counts seconds.

        `read_memory` stands in for the device's own figures; `seat` is rank 0's among several
        ranks, which `load` takes.

        Raises: InvalidConfig, ImplUnavailable, StrictRefusal: see `llm_engine.decisions.decide`.
        """
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        device = loaded.device
        device.use()
        read_memory = read_memory or device.read_memory
        if seat is not None:
            read_memory = seat.memory_of(read_memory)
        decisions = decide(
            config,
            loaded.shape,
            loaded.dtype,
            is_quantised=loaded.is_packed,
            facts=loaded.facts,
            prompt_token_bytes=loaded.prompt_token_bytes,
            cache_parts=loaded.cache_parts,
            machine=read_memory(),
            device=device,
        )
        self.config = config
        self.tokenizer = loaded.tokenizer
        self.ledger = decisions.ledger
        self.memory = decisions.memory
        self._chunk_tokens = decisions.chunk_tokens
        self._clock = clock
        self._device = device
        self._adapters = loaded.adapters
        if (adapters := loaded.adapters.decision()) is not None:
            self.ledger.record(adapters)
        self._cache = build_cache(config, decisions, 1 if seat is None else seat.num_parts)
        if seat is None:
            self._runner = build_runner(config, loaded, self._cache, decisions)
        else:
            self._runner = seat.runner(config, decisions, self._cache)
            for decision in seat.decisions(config):
                self.ledger.record(decision)
        self._expect = (lambda _: None) if seat is None else seat.ranks.expect
        self._scheduler = build_scheduler(config, decisions, self._cache, self._runner.storages)
        self._keepers = build_keepers(config, self._cache, decisions, read_memory, clock, device)
        speculation = decide_speculation(
            config, can_take_back=not decisions.layout.has_state, ledger=self.ledger
        )
        self._answers = Answers(
            loaded.tokenizer,
            loaded.eos_token_ids,
            speculator=make_speculator(config, speculation, clock),
            sampler=build_sampler(decisions),
            clock=clock,
        )
        card = loaded.card(decisions, config.page_size)
        self.card = replace(
            card,
            kv_tokens=card.kv_tokens * len(self._cache.parts),
            plan_hash=plan_hash(config, decisions.capacity, tuple(self.ledger)),
        )
        self.preparer = Preparer(
            loaded.tokenizer,
            vocab_size=self.card.vocab_size,
            max_model_len=self.card.max_model_len,
            eos_token_ids=loaded.eos_token_ids,
            grammar_timeout_s=config.grammar_timeout_s,
        )
        for decision in self.preparer.decisions():
            self.ledger.record(decision)
        self._num_prompt = 0
        self._num_steps = 0

    @classmethod
    def load(cls, config: EngineConfig, *, ranks: Ranks | None = None) -> Self:
        """Find and read the model, then build the engine; with a layout, as rank 0 of `ranks`.

        Raises: ModelNotFound, UnsupportedModel, InvalidConfig; ImplUnavailable and StrictRefusal
            before a weight is read.
        """
        if not config.layout:
            return cls(load_model(config), config)
        seat = Seat.take(config, ranks)
        return cls(seat.share.loaded(), config, seat=seat)

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
        self._adapters.check(request.adapter)
        return self.preparer.prepare(request)

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
        seqs = self._answers.open(prepared)
        self._num_prompt += len(prepared.prompt_ids)
        for seq in seqs:
            is_isolated = self.config.isolate_tenants
            seq.cache_salt = request.tenant_salt if is_isolated else request.cache_salt
            self._scheduler.add(seq)

    def step(self) -> list[Event]:
        """Compute one step and return what it produced, in order; nothing when there is no work.

        Raises: what exchanges with other ranks raise, before anything of the step has taken effect.
        """
        self.tend()
        started_s = self._clock()
        if self._scheduler.take_expired(started_s):
            self._answers.expire()
            self._free_ended()
        self._answers.draft()
        plan = self._scheduler.schedule()
        if not plan.chunks:
            return []
        self._num_steps += 1
        self._device.use()
        self._expect(self._scheduler.step_time.trusted_s(plan.shape))
        logits_SV = self._runner.run(plan.chunks)
        if logits_SV is None:
            events: list[Event] = []
            self._device.wait()  # what a step took is known once it is done
        else:
            events = self._answers.advance(plan.chunks, logits_SV)
        for chunk in plan.chunks:
            self._scheduler.commit(chunk)
            chunk.seq.draft_ids = ()
        self._free_ended()
        self._scheduler.step_time.observe(plan.shape, self._clock() - started_s)
        return events

    def tend(self) -> None:
        """Keep the cache's memory within what the machine can spare; cheap when it is not time."""
        for keeper in self._keepers:
            keeper.tend()
        self._runner.flush()

    def warm_up(self) -> MemoryLedger:
        """Measure the workspace of a full chunk while idle, in place of the formula's figure."""
        assert not self.has_work, "a warm-up needs an idle engine"
        num_tokens = min(self._chunk_tokens, self.card.max_model_len)
        measured = measure_step(self._cache, self._runner, self._device, num_tokens)
        if measured is not None:
            self.memory = self.memory.measured(STEP, measured)
        return self.memory

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
            generated_tokens_total=self._answers.num_generated,
            prompt_tokens_total=self._num_prompt,
            preemptions_total=self._scheduler.num_preemptions,
            copied_preemptions_total=self._scheduler.num_copied_preemptions,
            steps_total=self._num_steps,
            accepted_drafts_total=self._answers.num_accepted_drafts,
            rejected_drafts_total=self._answers.num_rejected_drafts,
            **cache_counts(self._cache),
        )

    def describe_cache(self) -> dict[str, Any]:
        """The cache's groups, geometry and counts, and the memory beside it; plain values."""
        memory = [asdict(entry) for entry in self.memory.entries]
        return describe_cache(self._cache) | {"memory": memory}

    def clear_cache(self) -> None:
        """Forget every prefix that no running request uses."""
        self._cache.clear()

    def begin_anew(self) -> None:
        """Compute all that runs again from its tokens so far, since the ranks' caches are lost.

        The answers go on with the same tokens: none depends on when it was computed.
        """
        self._scheduler.begin_anew()

    def rejoin(self) -> None:
        """Meet ranks that were started in place of lost ones, while they load.

        Raises: what the communicator raises where they are lost again.
        """
        self._runner.rejoin()

    def check_integrity(self) -> None:
        """Verify the cache, and that an idle engine holds nothing. Raises: AssertionError."""
        self._cache.check_integrity()
        if not self.has_work:
            num_used = [pool.num_used for part in self._cache.parts for pool in part.pools]
            assert not any(num_used), f"{num_used} pages leaked"
            num_choices = self._answers.num_choices
            assert num_choices == 0, f"{num_choices} choices leaked"

    def _free_ended(self) -> None:
        for seq in self._answers.take_ended():
            self._scheduler.remove(seq)
