"""Drafts change how many steps an answer takes, and nothing that its caller sees."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from llm_engine.speculation.ngram import NgramDrafter
from llm_engine.speculation.speculator import Speculator
from llm_engine.types import Finished, GenerationRequest, TextDelta

Build = Callable[..., Any]
Make = Callable[..., GenerationRequest]


class Guesser:
    """Proposes a fixed stream of letters: right now and then, mostly wrong."""

    acceptance = 0.5

    def __init__(self, letters: bytes = b"abacadae") -> None:
        self.letters = letters
        self.seen: list[tuple[int, int]] = []

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
        start = len(token_ids)
        return tuple(self.letters[(start + i) % len(self.letters)] for i in range(max_tokens))

    def observe(self, num_accepted: int, num_proposed: int) -> None:
        self.seen.append((num_accepted, num_proposed))


def _speculator(make_drafter: Any = NgramDrafter, **settings: Any) -> Speculator:
    settings = {"max_draft_tokens": 5, "clock": lambda: 0.0, "is_adaptive": False, **settings}
    return Speculator(make_drafter, **settings)


def _answers(events: Any) -> dict[Any, Any]:
    """What a caller sees of each choice, deltas joined, and of each request."""
    seen: dict[Any, Any] = {}
    for name, event in events:
        if isinstance(event, Finished):
            seen[name] = (event.prompt_tokens, event.completion_tokens)
        elif isinstance(event, TextDelta):
            text, tokens, logprobs, _ = seen.get((name, event.index), ("", (), (), None))
            seen[name, event.index] = (
                text + event.text,
                tokens + event.token_ids,
                logprobs + (event.logprobs or ()),
                event.finish_reason,
            )
    return seen


_PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.6, 1.5]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "top_k": st.sampled_from([0, 3]),
        "seed": st.integers(0, 2**40),
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 60),
        "min_tokens": st.just(1),
        "stop": st.sampled_from([(), ("bad", "hh"), ("ca",)]),
        "include_stop_str_in_output": st.booleans(),
        "presence_penalty": st.sampled_from([0.0, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.2]),
        "ignore_eos": st.booleans(),
        "logprobs": st.just(True),
        "top_logprobs": st.integers(0, 2),
    }
)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(_PARAMS, min_size=1, max_size=3),
    st.sampled_from([NgramDrafter, Guesser]),
    st.integers(1, 8),
)
def test_answers_are_the_same_with_drafts_and_without(
    toy_loop: Build, make_request: Make, kinds: list[Any], drafter: Any, max_draft_tokens: int
) -> None:
    requests = [make_request(f"r{i}", b"abcab", **kind) for i, kind in enumerate(kinds)]
    speculator = _speculator(drafter, max_draft_tokens=max_draft_tokens)
    plain = toy_loop().run(*requests)
    drafted = toy_loop(speculator=speculator).run(*requests)
    assert _answers(drafted) == _answers(plain)


@pytest.mark.parametrize("drafter", [NgramDrafter, Guesser])
def test_drafts_are_accepted_and_rejected_and_counted(
    toy_loop: Build, make_request: Make, drafter: Any
) -> None:
    request = make_request("a", b"abcab", seed=2, max_tokens=200, ignore_eos=True, n=2)
    plain, drafted = toy_loop(), toy_loop(speculator=_speculator(drafter))
    plain.run(request)
    events = drafted.run(request)
    finished = events[-1][1]
    assert finished.accepted_draft_tokens > 10
    assert finished.rejected_draft_tokens > 10
    assert drafted.answers.num_accepted_drafts == finished.accepted_draft_tokens
    assert drafted.answers.num_rejected_drafts == finished.rejected_draft_tokens
    assert drafted.num_steps < plain.num_steps
    assert plain.answers.num_generated == drafted.answers.num_generated == 400


def test_a_repeating_answer_takes_a_fraction_of_the_steps(
    toy_loop: Build, make_request: Make
) -> None:
    request = make_request("a", b"abcab", temperature=0.0, max_tokens=300, ignore_eos=True)
    loop = toy_loop(speculator=_speculator())
    loop.run(request)
    assert loop.num_steps < 300 / 4


def test_drawn_answers_follow_the_models_distribution(toy_loop: Build, make_request: Make) -> None:
    """All answers of three tokens, against their probabilities under the toy model itself."""
    letters, temperature, num = [97, 98, 99], 1.3, 4000
    table = torch.full((257, 257), float("-inf"))
    table[:, letters] = torch.randn(257, 3, generator=torch.Generator().manual_seed(1))
    probs = (table.double() / temperature).softmax(-1).numpy()
    expected = np.array(
        [
            probs[97, a] * probs[a, b] * probs[b, c]
            for a in letters
            for b in letters
            for c in letters
        ]
    )
    for speculator in (None, _speculator(lambda: Guesser(b"abc"), max_draft_tokens=2)):
        loop = toy_loop(lambda ids: table[ids[-1]], speculator=speculator)
        requests = [
            make_request(
                f"r{i}", b"aa", temperature=temperature, max_tokens=3, seed=i, n=100,
                ignore_eos=True,
            )
            for i in range(num // 100)
        ]  # fmt: skip
        answers = [tokens for (_, tokens, _, _) in _choices(loop.run(*requests))]
        counts = Counter(answers)
        observed = [counts[a, b, c] for a in letters for b in letters for c in letters]
        assert sum(observed) == num
        assert stats.chisquare(observed, num * expected).pvalue > 0.001
        assert (loop.answers.num_accepted_drafts > 500) is (speculator is not None)


def test_hidden_states_of_kept_rows_reach_a_drafter_that_asks(
    toy_loop: Build, make_request: Make
) -> None:
    made: list[Any] = []

    class Heads(Guesser):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[int, int]] = []
            made.append(self)

        def propose(self, token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
            # What was kept so far has its state, before anything is guessed.
            assert [position for position, _ in self.rows] == list(range(3, len(token_ids)))
            assert [token for _, token in self.rows] == list(token_ids[3:])
            return super().propose(token_ids, max_tokens)

        def take_hidden(self, hidden_SC: Any, token_ids: Sequence[int]) -> None:
            assert hidden_SC.shape == (len(token_ids), 1)
            self.rows += zip(map(int, hidden_SC[:, 0].tolist()), token_ids, strict=True)

    request = make_request("a", b"abc", seed=1, max_tokens=50, ignore_eos=True)
    loop = toy_loop(speculator=_speculator(Heads))
    assert _answers(loop.run(request)) == _answers(toy_loop().run(request))
    assert len(made[0].rows) == 50
    assert loop.num_steps < 50


def _choices(events: Any) -> list[Any]:
    return [value for key, value in _answers(events).items() if isinstance(key, tuple)]
