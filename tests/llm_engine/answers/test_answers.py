"""Open requests: constraints, output parsers, prompt scores, deadlines, and what is let go."""

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_engine.answers.choice import Choice
from llm_engine.chat.parser import ParsedText
from llm_engine.errors import DeadlineExceeded, RequestFailed
from llm_engine.speculation.ngram import NgramDrafter
from llm_engine.speculation.speculator import Speculator
from llm_engine.types import (
    Finished,
    GenerationRequest,
    PromptScored,
    SamplingParams,
    TextDelta,
    ToolCallDelta,
)

Build = Callable[..., Any]
Make = Callable[..., GenerationRequest]
EOS = 256


@dataclass
class Ascending:
    """Letters a to h that never descend; the end comes after `longest` of them, or any time."""

    longest: int = 12
    dies_after: int | None = None
    taken: list[int] = field(default_factory=list)
    is_ended: bool = False

    @property
    def is_finished(self) -> bool:
        return self.is_ended or len(self.taken) == self.longest

    def _allowed(self) -> set[int]:
        last = self.taken[-1] if self.taken else 97
        return {EOS} if self.is_finished else {EOS, *range(last, 105)}

    def fill(self, bitmask_W: torch.Tensor) -> None:
        if self.dies_after is not None and len(self.taken) >= self.dies_after:
            raise RequestFailed("its grammar grew too large")
        bitmask_W.zero_()
        for token in self._allowed():
            bitmask_W.numpy().view("uint32")[token // 32] |= 1 << (token % 32)

    def accept(self, token_id: int) -> bool:
        if token_id not in self._allowed():
            return False
        self.is_ended |= token_id == EOS
        self.taken.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.taken)
        self.is_ended &= EOS not in self.taken[-num_tokens:]
        del self.taken[-num_tokens:]

    def forced_tokens(self) -> list[int]:
        last = self.taken[-1] if self.taken else 97
        return [104] * (self.longest - len(self.taken)) if last == 104 else []


class Marked:
    """Text in round brackets is reasoning; `!` begins a call whose arguments run to the end."""

    needs_special_tokens = True

    def __init__(self) -> None:
        self.num_tool_calls = 0
        self.is_reasoning = False

    def push(self, text: str) -> ParsedText:
        content, reasoning, calls = "", "", []
        for char in text:
            if char in "()":
                self.is_reasoning = char == "("
            elif char == "!":
                self.num_tool_calls += 1
                calls.append(ToolCallDelta(self.num_tool_calls - 1, "id", "f", ""))
            elif self.is_reasoning:
                reasoning += char
            elif self.num_tool_calls:
                calls.append(ToolCallDelta(self.num_tool_calls - 1, None, None, char))
            else:
                content += char
        return ParsedText(content, reasoning, tuple(calls))

    def flush(self, *, is_cut: bool = False) -> ParsedText:
        return ParsedText()


class Telling(Marked):
    """Adds how the answer ended."""

    def flush(self, *, is_cut: bool = False) -> ParsedText:
        return ParsedText(content="…" if is_cut else ".")


def _deltas(events: Any, name: str = "a") -> list[TextDelta]:
    return [e for n, e in events if n == name and isinstance(e, TextDelta)]


def _tokens(events: Any, name: str = "a") -> list[int]:
    return [token for delta in _deltas(events, name) for token in delta.token_ids]


def _scripted(toy_loop: Build, script: Sequence[int], **settings: Any) -> Any:
    """A loop whose model answers a prompt of one token with exactly this."""

    def logits_of(known: Sequence[int]) -> Any:
        logits = torch.zeros(257)
        logits[script[min(len(known) - 1, len(script) - 1)]] = 1000.0
        return logits

    return toy_loop(logits_of, **settings)


def _speculator() -> Speculator:
    return Speculator(NgramDrafter, max_draft_tokens=4, clock=lambda: 0.0, is_adaptive=False)


# ---------------------------------------------------------------- constraints


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(0, 2**30),
    st.integers(1, 20),
    st.integers(0, 20),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
)
def test_a_constraint_holds_with_drafts_and_without(
    toy_loop: Build,
    make_request: Make,
    seed: int,
    longest: int,
    min_tokens: int,
    temperature: float,
    ignore_eos: bool,
) -> None:
    request = make_request(
        "a", b"abab", seed=seed, n=2, max_tokens=20, min_tokens=min_tokens,
        temperature=temperature, ignore_eos=ignore_eos,
    )  # fmt: skip
    seen = []
    for speculator in (None, _speculator()):
        loop = toy_loop(speculator=speculator)
        events = loop.run(request, matcher=lambda: Ascending(longest))
        assert not loop.answers.take_failures()
        answers = [
            [t for d in _deltas(events) if d.index == i for t in d.token_ids] for i in (0, 1)
        ]
        for answer in answers:
            letters = [token for token in answer if token != EOS]
            assert letters == sorted(letters)
            assert len(letters) <= longest
            # The grammar's own end beats min_tokens; no other end does.
            assert len(answer) >= min(min_tokens, longest)
        seen.append((answers, [d.finish_reason for d in _deltas(events) if d.finish_reason]))
    assert seen[0] == seen[1]


def test_forced_tokens_are_drafted(toy_loop: Build, make_request: Make) -> None:
    request = make_request("a", b"h", temperature=0.0, max_tokens=50, logit_bias={104: 50.0})
    loop = toy_loop(speculator=_speculator())
    events = loop.run(request, matcher=lambda: Ascending(longest=41))
    assert _tokens(events) == [104] * 41
    assert loop.num_steps == 1 + 40 / 5
    assert _deltas(events)[-1].finish_reason == "stop"
    assert events[-1][1].accepted_draft_tokens == 32


@pytest.mark.parametrize("drafts", [False, True])
def test_a_constraint_that_dies_takes_its_own_request_only(
    toy_loop: Build, make_request: Make, drafts: bool
) -> None:
    loop = toy_loop(speculator=_speculator() if drafts else None)
    request = {"seed": 3, "max_tokens": 12, "min_tokens": 12}
    loop.add(make_request("bad", b"ab", n=2, **request), matcher=lambda: Ascending(dies_after=3))
    events = loop.run(make_request("good", b"ab", **request))
    ((name, failure),) = loop.answers.take_failures()
    assert name == "bad"
    assert type(failure) is RequestFailed
    assert "grew too large" in str(failure)
    assert len(_tokens(events, "good")) == 12
    assert not any(isinstance(e, Finished) for n, e in events if n == "bad")
    assert loop.answers.num_choices == 0


def test_a_mask_that_allows_nothing_fails_with_its_cause(
    toy_loop: Build, make_request: Make
) -> None:
    class Closed(Ascending):
        def fill(self, bitmask_W: torch.Tensor) -> None:
            bitmask_W.zero_()

    loop = toy_loop()
    loop.run(make_request("a", b"x"), matcher=Closed)
    ((_, failure),) = loop.answers.take_failures()
    assert "no token" in str(failure)


# ---------------------------------------------------------------- text, reasoning, calls


@pytest.mark.parametrize("drafts", [False, True])
def test_a_parser_splits_the_answer(toy_loop: Build, make_request: Make, drafts: bool) -> None:
    loop = _scripted(
        toy_loop, [*b"(hmm hmm hmm)ok!xyz", EOS], speculator=_speculator() if drafts else None
    )
    events = loop.run(make_request("a", b"x", temperature=0.0, max_tokens=99), parser=Marked)
    deltas = _deltas(events)
    assert "".join(d.reasoning for d in deltas) == "hmm hmm hmm"
    assert "".join(d.text for d in deltas) == "ok"
    calls = [call for d in deltas for call in d.tool_calls]
    assert calls[0] == ToolCallDelta(0, "id", "f", "")
    assert "".join(call.arguments for call in calls) == "xyz"
    assert deltas[-1].finish_reason == "tool_calls"
    # The opening bracket belongs to the reasoning, the closing one to what follows.
    assert events[-1][1].reasoning_tokens == 12


@pytest.mark.parametrize(
    ("script", "max_tokens", "reason", "num_reasoning"),
    [
        (b"a!xyz", 4, "length", 0),
        (b"(abc", 4, "length", 4),
        (b"(ab)", 4, "length", 4),
        ([*b"(ab)c", EOS], 9, "stop", 3),
        ([*b"!", EOS], 9, "tool_calls", 0),
    ],
)
def test_reasons_to_finish(
    toy_loop: Build,
    make_request: Make,
    script: Any,
    max_tokens: int,
    reason: str,
    num_reasoning: int,
) -> None:
    request = make_request("a", b"x", temperature=0.0, max_tokens=max_tokens)
    events = _scripted(toy_loop, list(script)).run(request, parser=Telling)
    last = _deltas(events)[-1]
    assert last.finish_reason == reason
    # The parser is told whether the answer's length ended it.
    assert last.text.endswith("…" if reason == "length" else ".")
    assert events[-1][1].reasoning_tokens == num_reasoning


def test_stop_strings_are_looked_for_in_the_content_alone(
    toy_loop: Build, make_request: Make
) -> None:
    script = [*b"(END)a(b)ENDnever", EOS]
    request = make_request("a", b"x", temperature=0.0, max_tokens=99, stop=("END", "aEN"))
    deltas = _deltas(_scripted(toy_loop, script).run(request, parser=Marked))
    assert "".join(d.reasoning for d in deltas) == "ENDb"
    assert "".join(d.text for d in deltas) == ""
    assert deltas[-1].finish_reason == "stop"


def test_a_stop_string_is_shown_where_asked_for(toy_loop: Build, make_request: Make) -> None:
    request = make_request(
        "a", b"x", temperature=0.0, max_tokens=99, stop=("END",), include_stop_str_in_output=True
    )
    deltas = _deltas(_scripted(toy_loop, b"one ENDtwo").run(request))
    assert "".join(d.text for d in deltas) == "one END"


def test_a_parser_sees_special_tokens_and_plain_text_does_not(
    toy_loop: Build, make_request: Make
) -> None:
    """`<eos>` is this tokenizer's special token; as an ignored end it shows in neither."""

    class Plain(Marked):
        def push(self, text: str) -> ParsedText:
            return ParsedText(text)

    script = [*b"ab", EOS, *b"cd"]
    request = make_request("a", b"x", temperature=0.0, max_tokens=5, ignore_eos=True)
    for seams in ({}, {"parser": Plain}):
        deltas = _deltas(_scripted(toy_loop, script).run(request, **seams))
        assert "".join(d.text for d in deltas) == "abcd"
    other = _scripted(toy_loop, script)
    other.answers._eos_token_ids = frozenset()
    assert "".join(d.text for d in _deltas(other.run(request, parser=Plain))) == "ab<eos>cd"


# ---------------------------------------------------------------- prompt scores


@pytest.mark.parametrize("chunk_tokens", [1, 3, 64])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_prompt_is_scored_once_and_first(
    toy_loop: Build, make_request: Make, chunk_tokens: int, length: int
) -> None:
    weights = torch.randn(257, 257, generator=torch.Generator().manual_seed(2))
    prompt = list(b"some text"[:length])
    loop = toy_loop(lambda known: weights[known[-1]], chunk_tokens=chunk_tokens)
    request = make_request(
        "a", prompt, prompt_logprobs=2, seed=1, n=2, max_tokens=3, ignore_eos=True
    )
    events = [event for _, event in loop.run(request)]
    assert [isinstance(event, PromptScored) for event in events].index(True) == 0
    assert sum(isinstance(event, PromptScored) for event in events) == 1
    scored = events[0]
    assert isinstance(scored, PromptScored)
    assert scored.token_ids == tuple(prompt)
    assert scored.logprobs[0] is None
    assert scored.first_bytes == (prompt[0],)
    for before, token, entry in zip(prompt[:-1], prompt[1:], scored.logprobs[1:], strict=True):
        expected = weights[before].double().log_softmax(-1)
        assert entry is not None
        assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-5)
        assert entry.bytes == (token,)
        assert [t.logprob for t in entry.top] == pytest.approx(
            expected.topk(2).values.tolist(), abs=1e-5
        )


def test_a_prompt_computed_again_is_scored_once(toy_loop: Build, make_request: Make) -> None:
    loop = toy_loop(chunk_tokens=2)
    request = make_request("a", b"abcabcabc", prompt_logprobs=0, max_tokens=4, ignore_eos=True)
    loop.add(request)
    events = [*loop.step(), *loop.step()]
    loop.running[0].num_computed = 0
    for _ in range(7):
        events += loop.step()
    loop.running[0].num_computed = 0
    events += loop.run()
    assert sum(isinstance(event, PromptScored) for _, event in events) == 1
    assert len(_tokens(events)) == 4


def test_a_prompt_with_broken_logits_fails(toy_loop: Build, make_request: Make) -> None:
    loop = toy_loop(lambda known: torch.full((257,), float("nan")))
    loop.run(make_request("a", b"abc", prompt_logprobs=0))
    ((_, failure),) = loop.answers.take_failures()
    assert "not finite" in str(failure)


# ---------------------------------------------------------------- deadlines, cache, release


def test_a_deadline_fails_running_and_waiting_requests(toy_loop: Build) -> None:
    now = [100.0]
    loop = toy_loop(clock=lambda: now[0])
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    loop.add(GenerationRequest("late", None, (97,), params, deadline_s=5.0))
    loop.add(GenerationRequest("free", None, (97,), params))
    assert {seq.deadline_s for seq in loop.running} == {105.0, None}
    loop.step()
    loop.step()
    now[0] = 105.5
    events = loop.run()
    ((name, failure),) = loop.answers.take_failures()
    assert name == "late"
    assert isinstance(failure, DeadlineExceeded)
    assert "after 2 tokens" in str(failure)
    assert len(_tokens(events, "free")) == 28


def test_cached_tokens_are_those_of_the_first_choice(toy_loop: Build, make_request: Make) -> None:
    loop = toy_loop()
    loop.add(make_request("a", b"abc", n=2, max_tokens=2, seed=1))
    loop.running[0].num_cached_tokens, loop.running[1].num_cached_tokens = 1, 2
    assert loop.run()[-1][1].cached_tokens == 1


def test_a_seed_draws_the_same_beside_other_traffic(toy_loop: Build, make_request: Make) -> None:
    wanted = make_request("a", b"ab", seed=11, max_tokens=30, ignore_eos=True)
    alone = _tokens(toy_loop().run(wanted))
    crowd = [make_request(f"c{i}", b"ab", seed=11 + i, max_tokens=9 + i) for i in range(6)]
    loop = toy_loop(speculator=_speculator())
    loop.add(crowd[0])
    loop.step()
    assert _tokens(loop.run(*crowd[1:], wanted)) == alone


def test_nothing_of_an_ended_request_is_kept(toy_loop: Build, make_request: Make) -> None:
    loop = toy_loop(speculator=_speculator())
    loop.add(make_request("a", b"ab", n=2, max_tokens=5, repetition_penalty=1.1))
    loop.add(make_request("b", b"ab", max_tokens=50), matcher=Ascending, parser=Marked)
    kept = [weakref.ref(choice) for choice in loop.answers._choices.values()]
    assert all(isinstance(reference(), Choice) for reference in kept)
    loop.step()
    loop.answers.drop("b")
    loop.run()
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3
    answers = loop.answers
    assert not answers._requests
    assert not answers._choices
    assert not answers.take_ended()
