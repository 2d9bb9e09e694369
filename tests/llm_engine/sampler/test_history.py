"""Counts that follow the answer token by token, back and forth."""

from collections import Counter
from time import perf_counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.sampler import TokenHistory
from llm_engine.types import SamplingParams

_PARAMS = SamplingParams(repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.5)


def test_no_penalty_needs_no_history() -> None:
    assert TokenHistory.of(SamplingParams(), (1, 2)) is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 150), max_size=300), st.lists(st.integers(0, 150), max_size=40))
def test_what_was_pushed_and_popped_leaves_no_trace(kept: list[int], undone: list[int]) -> None:
    history, plain = TokenHistory(_PARAMS, [1, 2]), TokenHistory(_PARAMS, [2, 1, 1])
    for token in kept:
        plain.push(token)
        history.push(token)
        for draft in undone:
            history.push(draft)
        for draft in reversed(undone):
            history.pop(draft)
    logits = np.linspace(-3, 3, 151, dtype=np.float32)
    expected = logits.copy()
    counts = Counter(kept)
    for token in {1, 2, *kept}:
        x = expected[token]
        expected[token] = x / np.float32(1.5) if x > 0 else x * np.float32(1.5)
        if counts[token]:
            expected[token] = expected[token] - np.float32(0.25)
            expected[token] = expected[token] - np.float32(0.5 * counts[token])
    for one in (history, plain):
        out = logits.copy()
        one.penalise(out)
        assert out.tolist() == expected.tolist()


def test_a_token_costs_the_same_late_in_the_answer() -> None:
    history = TokenHistory(_PARAMS, range(100))
    logits = np.zeros(49152, dtype=np.float32)

    def seconds_of_a_step() -> float:
        times = []
        for token in range(50):
            start = perf_counter()
            history.push(token)
            history.penalise(logits)
            times.append(perf_counter() - start)
        return min(times)

    early = seconds_of_a_step()
    for i in range(100_000):
        history.push(i % 97)
    assert seconds_of_a_step() < 20 * early
