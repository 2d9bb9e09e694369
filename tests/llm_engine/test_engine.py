"""The engine end to end on a tiny random model whose tokens are bytes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.answers.detokenizer import REPLACEMENT
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.errors import (
    ContextLengthExceeded,
    InvalidConfig,
    InvalidRequest,
    QueueFull,
    RequestFailed,
)
from llm_engine.loader import LoadedModel
from llm_engine.types import ChatMessage, Finished, GenerationRequest, SamplingParams, TextDelta

Build = Callable[..., LLMEngine]
Make = Callable[..., GenerationRequest]
EOS = 256


def _text(events: Any, request_id: str = "a", index: int = 0) -> str:
    return "".join(
        event.text
        for name, event in events
        if name == request_id and isinstance(event, TextDelta) and event.index == index
    )


def test_events_end_with_the_usage(tiny_engine: Build, make_request: Make) -> None:
    engine = tiny_engine()
    request = make_request("a", b"hello", temperature=0.0, max_tokens=9, ignore_eos=True)
    events = [event for _, event in engine.generate([request])]
    assert all(isinstance(event, TextDelta) for event in events[:-1])
    assert isinstance(events[-1], Finished)
    counts = (events[-1].prompt_tokens, events[-1].completion_tokens, events[-1].cached_tokens)
    assert counts == (5, 9, 0)
    reasons = [event.finish_reason for event in events[:-1]]
    assert reasons == [None] * 8 + ["length"]
    engine.check_integrity()


def test_greedy_equals_the_naive_loop(
    tiny_engine: Build, tiny_oracle: Any, make_request: Make, tokens_of: Callable[..., Any]
) -> None:
    prompts = {f"r{i}": list(range(i, 3 * i + 2)) for i in range(12)}
    requests = [
        make_request(name, ids, temperature=0.0, max_tokens=20, ignore_eos=True)
        for name, ids in prompts.items()
    ]
    # 480 bytes a token in each of 3 layers' keys and values; few pages force preemption.
    engine = tiny_engine(kv_cache_bytes=768 * 120, max_num_seqs=6, prefill_chunk_tokens=5)
    answers = tokens_of(engine.generate(requests))
    assert engine.stats().preemptions_total > 0
    for name, prompt in prompts.items():
        ids = torch.tensor([[*prompt, *answers[name]]])
        with torch.inference_mode():
            logits = tiny_oracle(ids).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == answers[name]
    engine.check_integrity()


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_seed_gives_the_same_answer_in_any_traffic(
    tiny_loaded: LoadedModel, data: st.DataObject, tokens_of: Callable[..., Any]
) -> None:
    def request(name: str, prompt: bytes, seed: int) -> GenerationRequest:
        params = SamplingParams(seed=seed, max_tokens=12, top_p=0.95, n=2, ignore_eos=True)
        return GenerationRequest(name, None, tuple(prompt), params)

    def engine(**settings_: Any) -> LLMEngine:
        config = EngineConfig(model="tiny", dtype="float32", page_size=4, **settings_)
        return LLMEngine(tiny_loaded, config)

    wanted = request("wanted", b"the same", 11)
    alone = engine().generate([wanted])
    crowd = [
        request(f"c{i}", data.draw(st.binary(min_size=1, max_size=20)), i)
        for i in range(data.draw(st.integers(1, 5)))
    ]
    busy = engine(
        max_num_seqs=data.draw(st.integers(1, 8)),
        prefill_chunk_tokens=data.draw(st.integers(1, 16)),
        kv_cache_bytes=768 * 64,
    )
    position = data.draw(st.integers(0, len(crowd)))
    events = busy.generate([*crowd[:position], wanted, *crowd[position:]])
    for index in (0, 1):
        assert tokens_of(events, index)["wanted"] == tokens_of(alone, index)["wanted"]
    assert tokens_of(alone, 0) != tokens_of(alone, 1)


def test_text_is_whole_characters_and_joins(tiny_engine: Build, make_request: Make) -> None:
    """Random bytes are mostly broken UTF-8: the joined stream must equal the full decode."""
    engine = tiny_engine()
    for seed in range(5):
        request = make_request("a", b"x", seed=seed, max_tokens=60, ignore_eos=True)
        events = engine.generate([request])
        tokens = [t for _, e in events if isinstance(e, TextDelta) for t in e.token_ids]
        assert _text(events) == engine.tokenizer.decode(tokens)


def test_the_bytes_of_an_emoji_come_as_one_piece(
    tiny_engine: Build, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = _scripted(tiny_engine(), make_request, monkeypatch, "a🙂ď".encode())
    pieces = [event.text for event in events]
    assert pieces == ["a", "", "", "", "🙂", "", "ď"]
    assert all(REPLACEMENT not in piece for piece in pieces)


@pytest.mark.parametrize(
    ("answer", "stop", "expected"),
    [
        (b"DEFGHIJ", ("DEFGHIJ",), ""),
        (b"one two three", ("two", "three"), "one "),
        ("ab🙂cd".encode(), ("🙂",), "ab"),
        (b"aXbXc", ("Xc",), "aXb"),
    ],
)
def test_stop_strings_span_tokens(
    tiny_engine: Build,
    make_request: Make,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
    stop: tuple[str, ...],
    expected: str,
) -> None:
    events = _scripted(tiny_engine(), make_request, monkeypatch, answer + b"????", stop=stop)
    assert "".join(event.text for event in events) == expected
    assert events[-1].finish_reason == "stop"
    assert all("?" not in event.text for event in events)


def test_held_text_is_shown_when_eos_or_length_ends_the_answer(
    tiny_engine: Build, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_length = _scripted(tiny_engine(), make_request, monkeypatch, b"a##", stop=("###",))
    assert "".join(event.text for event in by_length) == "a##"
    assert by_length[-1].finish_reason == "length"
    by_eos = _scripted(tiny_engine(), make_request, monkeypatch, [*b"a##", EOS], stop=("###",))
    assert "".join(event.text for event in by_eos) == "a##"
    assert by_eos[-1].finish_reason == "stop"
    assert by_eos[-1].token_ids == (EOS,)


def test_eos_stops_beside_a_users_stop_unless_ignored(
    tiny_engine: Build, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [*b"ab", EOS, *b"cd"]
    stopped = _scripted(tiny_engine(), make_request, monkeypatch, script, stop=("zzz",))
    assert "".join(event.text for event in stopped) == "ab"
    ignored = _scripted(tiny_engine(), make_request, monkeypatch, script, ignore_eos=True)
    assert "".join(event.text for event in ignored) == "abcd"
    by_id = _scripted(tiny_engine(), make_request, monkeypatch, b"abc", stop_token_ids=(98,))
    assert "".join(event.text for event in by_id) == "a"


def test_min_tokens_holds_off_the_end(tiny_engine: Build, make_request: Make) -> None:
    bias = {EOS: 100.0}
    short = make_request("a", b"x", temperature=0.0, logit_bias=bias, max_tokens=9)
    long = make_request("b", b"x", temperature=0.0, logit_bias=bias, max_tokens=9, min_tokens=4)
    engine = tiny_engine()
    counts = {n: e.completion_tokens for n, e in engine.generate([short, long]) if _is_last(e)}
    assert counts == {"a": 1, "b": 5}


def test_choices_are_summed_in_one_usage(tiny_engine: Build, make_request: Make) -> None:
    request = make_request("a", b"abc", n=3, seed=1, max_tokens=5, ignore_eos=True)
    events = [event for _, event in tiny_engine(max_num_seqs=2).generate([request])]
    assert isinstance(events[-1], Finished)
    assert (events[-1].prompt_tokens, events[-1].completion_tokens) == (3, 15)
    reasons = [e.index for e in events if isinstance(e, TextDelta) and e.finish_reason]
    assert sorted(reasons) == [0, 1, 2]


def test_logprobs_equal_the_oracles(
    tiny_engine: Build, tiny_oracle: Any, make_request: Make
) -> None:
    request = make_request(
        "a", b"prompt", seed=3, max_tokens=6, logprobs=True, top_logprobs=4, ignore_eos=True
    )
    deltas = [e for _, e in tiny_engine().generate([request]) if isinstance(e, TextDelta)]
    tokens = [token for delta in deltas for token in delta.token_ids]
    with torch.inference_mode():
        logits = tiny_oracle(torch.tensor([[*b"prompt", *tokens]])).logits[0, 5:-1]
    for delta, token, expected in zip(deltas, tokens, logits.log_softmax(-1), strict=True):
        assert delta.logprobs is not None
        (entry,) = delta.logprobs
        assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-4)
        top = expected.topk(4)
        assert [t.logprob for t in entry.top] == pytest.approx(top.values.tolist(), abs=1e-4)
        assert [t.bytes[0] for t in entry.top if len(t.bytes) == 1] == [
            i for i in top.indices.tolist() if i != EOS
        ]


def test_no_logprobs_unless_asked(tiny_engine: Build, make_request: Make) -> None:
    events = tiny_engine().generate([make_request("a", b"x", max_tokens=2, seed=1)])
    assert all(e.logprobs is None for _, e in events if isinstance(e, TextDelta))


def test_too_long_a_prompt_is_refused_before_any_output(
    tiny_engine: Build, make_request: Make
) -> None:
    engine = tiny_engine(max_model_len=16)
    with pytest.raises(ContextLengthExceeded, match="16 tokens") as caught:
        engine.add(make_request("a", b"x" * 16))
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (16, 16)
    assert not engine.has_work


def test_max_tokens_is_cut_to_the_context(tiny_engine: Build, make_request: Make) -> None:
    engine = tiny_engine(max_model_len=16)
    request = make_request("a", b"x" * 10, max_tokens=100, temperature=0.0, ignore_eos=True)
    events = [event for _, event in engine.generate([request])]
    assert isinstance(events[-1], Finished)
    assert (events[-1].prompt_tokens, events[-1].completion_tokens) == (10, 6)
    assert events[-2].finish_reason == "length"


def test_an_abort_frees_pages_at_once(tiny_engine: Build, make_request: Make) -> None:
    engine = tiny_engine()
    for name in "abc":
        engine.add(make_request(name, b"x" * 40, n=2, max_tokens=50))
    for _ in range(4):
        engine.step()
    used = engine.stats().kv_pages_used
    engine.abort("a")
    assert engine.stats().kv_pages_used < used
    engine.check_integrity()
    engine.abort("b")
    engine.abort("c")
    engine.abort("unknown")
    assert not engine.has_work
    assert engine.stats().kv_pages_used == 0
    engine.check_integrity()


def test_the_queue_has_a_cap_and_ids_are_unique(tiny_engine: Build, make_request: Make) -> None:
    engine = tiny_engine(max_queued=2, max_num_seqs=1)
    engine.add(make_request("a", b"x"))
    with pytest.raises(InvalidRequest, match="in use"):
        engine.add(make_request("a", b"x"))
    engine.add(make_request("b", b"x"))
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        engine.add(make_request("c", b"x"))


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([1, 999], {}, "prompt_token_ids"),
        ([1], {"logit_bias": {257: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": (-1,)}, "stop_token_ids"),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(
    tiny_engine: Build, make_request: Make, prompt: list[int], params: Any, param: str
) -> None:
    with pytest.raises(InvalidRequest, match="between 0 and 256") as caught:
        tiny_engine().add(make_request("a", prompt, **params))
    assert caught.value.param == param


def test_a_broken_row_fails_its_request_only(
    tiny_engine: Build, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    run = engine._runner.run

    def broken(chunks: Any) -> Any:
        logits = run(chunks).clone()
        names = [engine._answers._choices[c.seq.seq_id].request_id for c in chunks if c.is_last]
        if "bad" in names:
            logits[names.index("bad")] = float("nan")
        return logits

    monkeypatch.setattr(engine._runner, "run", broken)
    for name in ("good", "bad"):
        engine.add(make_request(name, b"x", max_tokens=5, seed=1, ignore_eos=True))
    events = []
    while engine.has_work:
        events += engine.step()
    assert {name for name, _ in events} == {"good"}
    ((name, failure),) = engine.take_failures()
    assert name == "bad"
    assert isinstance(failure, RequestFailed)
    engine.check_integrity()


def test_messages_go_through_the_template(tiny_engine: Build) -> None:
    engine = tiny_engine()
    messages = (ChatMessage("developer", "be brief"), ChatMessage("user", "hi"))
    request = GenerationRequest("a", messages, None, SamplingParams(max_tokens=1))
    prepared = engine.prepare(request)
    assert bytes(prepared.prompt_ids) == b"[system]be brief[user]hi[assistant]"


def test_the_card_names_the_source(tiny_engine: Build, tiny_oracle: Any) -> None:
    card = tiny_engine(kv_cache_bytes=768 * 40).card
    assert card.source.startswith("local path")
    assert card.num_parameters == tiny_oracle.num_parameters()
    assert (card.dtype, card.vocab_size, card.kv_tokens) == ("float32", 257, 40)
    assert card.max_model_len == 40


def test_settings_that_cannot_be_met_are_errors(tiny_engine: Build) -> None:
    with pytest.raises(InvalidConfig, match="context is 512"):
        tiny_engine(max_model_len=513)
    with pytest.raises(InvalidConfig, match="at least"):
        tiny_engine(max_model_len=100, kv_cache_bytes=768 * 40)


def _is_last(event: TextDelta | Finished) -> bool:
    return isinstance(event, Finished)


def _scripted(
    engine: LLMEngine,
    make_request: Make,
    monkeypatch: pytest.MonkeyPatch,
    script: Any,
    **params: Any,
) -> list[TextDelta]:
    """Deltas of one request whose model answers with exactly the tokens of `script`."""
    run = engine._runner.run
    script = list(script)

    def forced(chunks: Any) -> Any:
        logits = run(chunks).clone()
        position = chunks[0].seq.num_generated
        logits[0, script[position]] = 1000.0
        return logits

    monkeypatch.setattr(engine._runner, "run", forced)
    request = make_request("a", b"x", temperature=0.0, max_tokens=len(script), **params)
    return [event for _, event in engine.generate([request]) if isinstance(event, TextDelta)]
