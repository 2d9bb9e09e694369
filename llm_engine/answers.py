"""From logits to events: every open request with its choices, and what each step adds to them."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from llm_engine.choice import Choice
from llm_engine.errors import InvalidRequest, RequestFailed
from llm_engine.prompt import PreparedRequest
from llm_engine.sampler import Sampled, make_generator, sample
from llm_engine.scheduler import Chunk
from llm_engine.sequence import Sequence as ScheduledSequence
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import Finished, TextDelta

Event = tuple[str, TextDelta | Finished]
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _ActiveRequest:
    """A request between `open` and its last event."""

    num_prompt_tokens: int
    choices: list[Choice]
    num_completion_tokens: int = 0


class Answers:
    """The open requests.

    Invariants: every request opened yields deltas for each choice and then one `Finished`, unless
    it is dropped or fails; a choice that has ended is in `take_ended` exactly once.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        """Start with none."""
        self.num_generated = 0
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._requests: dict[str, _ActiveRequest] = {}
        self._choices: dict[int, Choice] = {}
        self._ended: list[ScheduledSequence] = []
        self._failures: list[tuple[str, RequestFailed]] = []
        self._num_seqs = 0

    @property
    def num_choices(self) -> int:
        """Choices that have not ended."""
        return len(self._choices)

    def open(self, prepared: PreparedRequest) -> list[ScheduledSequence]:
        """Begin an answer; the sequences are to be scheduled.

        Raises: InvalidRequest for an id in use.
        """
        request = prepared.request
        if request.request_id in self._requests:
            raise InvalidRequest(
                f"request_id {request.request_id!r} is in use: choose another", param="request_id"
            )
        seed = secrets.randbits(63) if request.params.seed is None else request.params.seed
        choices = [self._make_choice(prepared, i, seed) for i in range(request.params.n)]
        self._requests[request.request_id] = _ActiveRequest(len(prepared.prompt_ids), choices)
        for choice in choices:
            self._choices[choice.seq.seq_id] = choice
        return [choice.seq for choice in choices]

    def advance(self, chunks: Sequence[Chunk], logits_SV: torch.Tensor) -> list[Event]:
        """Choose the tokens that are due and say what they add.

        Shapes: logits (S, V), float32, one row per chunk with `is_last`, in order.
        """
        due = [self._choices[chunk.seq.seq_id] for chunk in chunks if chunk.is_last]
        with torch.inference_mode():
            sampled = sample(logits_SV, [choice.sampler_row() for choice in due])
        events: list[Event] = []
        for choice, token in zip(due, sampled, strict=True):
            if choice.request_id not in self._requests:
                continue
            if token is None:
                self.fail(choice.request_id, "the model's logits are not finite")
            else:
                events.extend(self._advance(choice, token))
        return events

    def drop(self, request_id: str) -> None:
        """Forget a request; its sequences have ended. An unknown id is no error."""
        active = self._requests.pop(request_id, None)
        for choice in active.choices if active else ():
            self._end(choice)

    def fail(self, request_id: str, cause: str) -> None:
        """Drop a request and keep the failure for `take_failures`."""
        _LOG.error("request %s failed: %s", request_id, cause)
        self.drop(request_id)
        self._failures.append((request_id, RequestFailed(f"request {request_id}: {cause}")))

    def take_ended(self) -> list[ScheduledSequence]:
        """Sequences that ended since the last call: their slots and pages are to be freed."""
        ended, self._ended = self._ended, []
        return ended

    def take_failures(self) -> list[tuple[str, RequestFailed]]:
        """Requests that broke since the last call; they yield no further events."""
        failures, self._failures = self._failures, []
        return failures

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
            tokenizer=self._tokenizer,
            eos_token_ids=self._eos_token_ids,
        )

    def _advance(self, choice: Choice, token: Sampled) -> list[Event]:
        active = self._requests[choice.request_id]
        delta = choice.advance(token)
        self.num_generated += 1
        active.num_completion_tokens += 1
        events: list[Event] = [(choice.request_id, delta)]
        if delta.finish_reason is not None:
            self._end(choice)
            active.choices.remove(choice)
            if not active.choices:
                del self._requests[choice.request_id]
                finished = Finished(active.num_prompt_tokens, active.num_completion_tokens, 0)
                events.append((choice.request_id, finished))
        return events

    def _end(self, choice: Choice) -> None:
        del self._choices[choice.seq.seq_id]
        self._ended.append(choice.seq)
