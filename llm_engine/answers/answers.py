"""From logits to events: every open request with its choices, and what each step adds to them."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from llm_engine.answers.active_request import ActiveRequest, Event
from llm_engine.answers.choice import Choice
from llm_engine.device import upload
from llm_engine.errors import DeadlineExceeded, InvalidRequest, RequestFailed
from llm_engine.prompt import PreparedRequest
from llm_engine.sampler import Sampled, Sampler, SamplerRow, Unsampled, sample
from llm_engine.sequence import Chunk
from llm_engine.sequence import Sequence as ScheduledSequence
from llm_engine.speculation.speculator import DraftTarget, Speculator
from llm_engine.tokenizer import Tokenizer

__all__ = ["Answers", "Event"]

# S rows of logits, C channels, V vocabulary.

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Due:
    """A choice with the logits rows that its next tokens are chosen from."""

    choice: Choice
    first_row: int
    rows: list[SamplerRow]


class Answers:
    """The open requests.

    Invariants: every request opened yields deltas for each choice and then one `Finished`, unless
    it is dropped or fails; a choice that has ended is in `take_ended` exactly once, and nothing
    of an ended request is kept.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
        *,
        speculator: Speculator | None = None,
        sampler: Sampler = sample,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with none. Units: `clock` counts seconds."""
        self._sample = sampler
        self.num_generated = 0
        self.num_accepted_drafts = 0
        self.num_rejected_drafts = 0
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._speculator = speculator
        self._clock = clock
        self._requests: dict[str, ActiveRequest] = {}
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
        request, params = prepared.request, prepared.request.params
        if request.request_id in self._requests:
            raise InvalidRequest(
                f"request_id {request.request_id!r} is in use: choose another", param="request_id"
            )
        deadline_s = None if request.deadline_s is None else self._clock() + request.deadline_s
        seed = secrets.randbits(63) if params.seed is None else params.seed
        choices = [self._make_choice(prepared, i, seed, deadline_s) for i in range(params.n)]
        active = ActiveRequest(prepared, choices, deadline_s, self._tokenizer)
        self._requests[request.request_id] = active
        for choice in choices:
            self._choices[choice.seq.seq_id] = choice
        return [choice.seq for choice in choices]

    def expire(self) -> None:
        """Fail the requests whose deadline has passed, running or waiting."""
        now_s = self._clock()
        passed = [
            (request_id, active.num_completion_tokens)
            for request_id, active in self._requests.items()
            if active.deadline_s is not None and active.deadline_s <= now_s
        ]
        for request_id, num_tokens in passed:
            cause = f"its deadline passed after {num_tokens} tokens: allow it more time"
            self.fail(request_id, cause, kind=DeadlineExceeded)

    def draft(self) -> None:
        """Set the drafts of the next step; to be called before it is scheduled."""
        if self._speculator is None:
            return
        targets = [
            DraftTarget(choice.seq, choice.drafts, choice.matcher)
            for choice in self._choices.values()
            if choice.drafts and choice.seq.num_generated and choice.seq.num_uncomputed == 1
        ]
        self._speculator.draft(targets)

    def advance(
        self,
        chunks: Sequence[Chunk],
        logits_SV: torch.Tensor,
        hidden_SC: torch.Tensor | None = None,
    ) -> list[Event]:
        """Choose the tokens that are due and say what they add.

        Shapes: logits (S, V), float32, `num_logits` rows of each chunk in order; hidden (S, C),
        the final states of the same rows, for drafters that ask for them.
        """
        with torch.inference_mode():
            events, due = self._take_rows(chunks, logits_SV)
            indices = [entry.first_row + i for entry in due for i in range(len(entry.rows))]
            due_SV = logits_SV
            if len(indices) < len(logits_SV):
                index_S = upload(indices, torch.int64, logits_SV.device)
                due_SV = logits_SV.index_select(0, index_S)
            sampled = iter(self._sample(due_SV, [row for entry in due for row in entry.rows]))
            for entry in due:
                results = [next(sampled) for _ in entry.rows]
                hidden = None if hidden_SC is None else hidden_SC[entry.first_row :]
                events.extend(self._advance(entry.choice, results, hidden))
        if self._speculator is not None:
            self._speculator.observe(chunks)
        return events

    def drop(self, request_id: str) -> None:
        """Forget a request; its sequences have ended. An unknown id is no error."""
        active = self._requests.pop(request_id, None)
        for choice in active.choices if active else ():
            self._end(choice)

    def fail(
        self, request_id: str, cause: str, *, kind: type[RequestFailed] = RequestFailed
    ) -> None:
        """Drop a request and keep the failure for `take_failures`."""
        # A deadline is the caller's own bound: nothing that its service should be looked at for.
        level = logging.INFO if kind is DeadlineExceeded else logging.ERROR
        _LOG.log(level, "request %s failed: %s", request_id, cause)
        self.drop(request_id)
        self._failures.append((request_id, kind(f"request {request_id}: {cause}")))

    def take_ended(self) -> list[ScheduledSequence]:
        """Sequences that ended since the last call: their slots and pages are to be freed."""
        ended, self._ended = self._ended, []
        return ended

    def take_failures(self) -> list[tuple[str, RequestFailed]]:
        """Requests that broke since the last call; they yield no further events."""
        failures, self._failures = self._failures, []
        return failures

    def _make_choice(
        self, prepared: PreparedRequest, index: int, seed: int, deadline_s: float | None
    ) -> Choice:
        request = prepared.request
        seq = ScheduledSequence(
            seq_id=self._num_seqs,
            token_ids=list(prepared.prompt_ids),
            num_prompt_tokens=len(prepared.prompt_ids),
            max_total_tokens=prepared.max_total_tokens,
            priority=request.priority,
            request_id=request.request_id,
            tenant=request.tenant,
            adapter_id=request.adapter,
            deadline_s=deadline_s,
        )
        self._num_seqs += 1
        return Choice(
            prepared,
            index,
            seq,
            seed=seed,
            tokenizer=self._tokenizer,
            eos_token_ids=self._eos_token_ids,
            drafts=None if self._speculator is None else self._speculator.follow(),
        )

    def _take_rows(
        self, chunks: Sequence[Chunk], logits_SV: torch.Tensor
    ) -> tuple[list[Event], list[_Due]]:
        """Score prompts, and find the rows that tokens are due for."""
        events: list[Event] = []
        due: list[_Due] = []
        end = 0
        for chunk in chunks:
            first, end = end, end + chunk.num_logits
            choice = self._choices.get(chunk.seq.seq_id)
            if choice is None:
                continue
            request_id = choice.request_id
            try:
                events.extend(self._requests[request_id].score(chunk, logits_SV[first:end]))
                if chunk.is_last:
                    rows = choice.sampler_rows(chunk.num_drafts, logits_SV.shape[1])
                    due.append(_Due(choice, end - len(rows), rows))
            except RequestFailed as error:
                self.fail(request_id, str(error))
        return events, due

    def _advance(
        self,
        choice: Choice,
        sampled: Sequence[Sampled | Unsampled],
        hidden_SC: torch.Tensor | None,
    ) -> list[Event]:
        if choice.seq.seq_id not in self._choices:
            return []
        try:
            delta = choice.advance(sampled)
        except RequestFailed as error:
            self.fail(choice.request_id, str(error))
            return []
        self.num_generated += len(delta.token_ids)
        if choice.drafts is not None:
            num_drafts = len(sampled) - 1
            num_accepted = choice.drafts.observe(delta.token_ids, num_drafts)
            self.num_accepted_drafts += num_accepted
            self.num_rejected_drafts += num_drafts - num_accepted
            if hidden_SC is not None:
                choice.drafts.take_hidden(hidden_SC, delta.token_ids)
        active = self._requests[choice.request_id]
        events = active.add(choice, delta)
        if delta.finish_reason is not None:
            self._end(choice)
            if not active.choices:
                del self._requests[choice.request_id]
        return events

    def _end(self, choice: Choice) -> None:
        del self._choices[choice.seq.seq_id]
        self._ended.append(choice.seq)
