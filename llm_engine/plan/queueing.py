"""Requests through one machine in virtual time: first come, first served, bound by KV capacity.

Between two events every rate is constant, so a run costs a few events for each request. Sequences
that decode all advance alike: a clock that counts the tokens given to each of them says when one
ends, whatever happened meanwhile.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTimes:
    """What the machine takes for the pieces of a request.

    A prompt of n tokens prefills in `n * prefill_s_per_token + n * n * prefill_s_per_token2`,
    in chunks of `chunk_tokens`; a decode step of b sequences in `decode_s + b * decode_s_each`.
    `kv_tokens` are the tokens of prompts and answers that the cache holds at a time. Where the
    phases share the cards (`shares_cards`), a chunk and a decode step run one after the other.
    The first token comes `fill_s` after a prompt's last chunk: it passes the other stages of a
    pipeline, whose first one computes the next prompt meanwhile.
    Units: seconds, tokens.
    Raises: ValueError for a time that is negative or no number, and for no tokens.
    """

    prefill_s_per_token: float
    decode_s: float
    kv_tokens: float
    prefill_s_per_token2: float = 0.0
    decode_s_each: float = 0.0
    chunk_tokens: int = 8192
    shares_cards: bool = False
    fill_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prefill_s_per_token2", "decode_s_each", "fill_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more seconds")
        for name in ("prefill_s_per_token", "decode_s", "kv_tokens", "chunk_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")

    def prefill_s(self, tokens: int) -> float:
        """A prompt's prefill alone on the machine."""
        return tokens * (self.prefill_s_per_token + tokens * self.prefill_s_per_token2)


@dataclass(slots=True)
class Visit:
    """One request: when it came, when it was admitted, when its first token was there."""

    prompt_tokens: int
    answer_tokens: int
    arrival_s: float
    admitted_s: float = math.nan
    first_token_s: float = math.nan
    end_s: float = math.nan

    @property
    def kv_tokens(self) -> int:
        """What it holds from its admission to its end."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def ttft_s(self) -> float:
        """From its arrival to its first token."""
        return self.first_token_s - self.arrival_s


OnEnd = Callable[[float], Visit | None]


def visits(times: ServiceTimes, arrivals: Iterator[Visit], on_end: OnEnd) -> Iterator[Visit]:
    """Finished requests in the order of their end, as long as any are under way.

    `arrivals` come in the order of their time; `on_end(now)` gives the request that a caller sends
    when one of his has ended, None where callers do not wait for answers. A request must fit the
    cache (the caller has checked).
    """
    return _Machine(times, arrivals, on_end).run()


class _Machine:
    def __init__(self, times: ServiceTimes, arrivals: Iterator[Visit], on_end: OnEnd) -> None:
        self._times, self._arrivals, self._on_end = times, arrivals, on_end
        self._now_s = 0.0
        self._next = next(arrivals, None)
        self._waiting: deque[Visit] = deque()
        self._free_tokens = times.kv_tokens
        self._prefilling: Visit | None = None
        self._prefill_left_s = 0.0
        self._chunk_s = 0.0
        self._tokens_given = 0.0  # to each sequence that decodes, since the start
        self._decoding: list[tuple[float, int, Visit]] = []
        self._count = 0

    def run(self) -> Iterator[Visit]:
        while True:
            self._admit()
            prefill_rate, token_rate = self._rates()
            arrival_s = self._next.arrival_s - self._now_s if self._next else math.inf
            prefill_s = self._prefill_left_s / prefill_rate if prefill_rate else math.inf
            decode_s = self._tokens_left() / token_rate
            wait_s = min(arrival_s, prefill_s, decode_s)
            if wait_s == math.inf:
                return
            self._now_s += wait_s
            self._prefill_left_s -= wait_s * prefill_rate
            self._tokens_given += wait_s * token_rate
            if wait_s == arrival_s and self._next is not None:
                self._waiting.append(self._next)
                self._next = next(self._arrivals, None)
            elif wait_s == prefill_s and self._prefilling is not None:
                self._begin_decode(self._prefilling)
            else:
                yield self._finish()

    def _admit(self) -> None:
        """The longest waiting request gets its cache and the prefill, when both are free."""
        if self._prefilling is not None or not self._waiting:
            return
        first = self._waiting[0]
        if first.kv_tokens > self._free_tokens:
            return
        self._waiting.popleft()
        self._free_tokens -= first.kv_tokens
        first.admitted_s = self._now_s
        self._prefilling = first
        self._prefill_left_s = self._times.prefill_s(first.prompt_tokens)
        num_chunks = math.ceil(first.prompt_tokens / self._times.chunk_tokens)
        self._chunk_s = self._prefill_left_s / num_chunks

    def _rates(self) -> tuple[float, float]:
        """Seconds of prefill done in a second, and tokens given to each decoding sequence."""
        times, batch = self._times, len(self._decoding)
        step_s = times.decode_s + batch * times.decode_s_each
        if self._prefilling is None:
            return 0.0, 1 / step_s
        if not times.shares_cards or not batch:
            return 1.0, 1 / step_s
        both_s = self._chunk_s + step_s
        return self._chunk_s / both_s, 1 / both_s

    def _tokens_left(self) -> float:
        """Until the first of the decoding sequences ends."""
        return self._decoding[0][0] - self._tokens_given if self._decoding else math.inf

    def _begin_decode(self, visit: Visit) -> None:
        """The prefill's last chunk gives the first token, once it has passed all stages."""
        fill_s = self._times.fill_s
        visit.first_token_s = self._now_s + fill_s
        self._prefilling = None
        self._count += 1
        end = self._tokens_given + visit.answer_tokens + fill_s * self._rates()[1]
        heapq.heappush(self._decoding, (end, self._count, visit))

    def _finish(self) -> Visit:
        _, _, visit = heapq.heappop(self._decoding)
        visit.end_s = self._now_s
        self._free_tokens += visit.kv_tokens
        following = self._on_end(self._now_s)
        if following is not None:
            self._waiting.append(following)
        return visit
