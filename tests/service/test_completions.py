"""POST /v1/completions with a scripted model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from chat_kit import chunks_of, complete, delta, scored, script
from gateway_kit import FakeClient
from hypothesis import given
from hypothesis import strategies as st

from service.completions.logprobs import ClassicLogprobs
from workers.protocol import ChatDone, PromptScored, TokenLogprob

pytestmark = pytest.mark.anyio
ONCE = PromptScored(
    token_ids=(1, 2, 3), logprobs=(None, scored(" upon"), scored(" a")), first_bytes=tuple(b"Once")
)


async def test_a_whole_completion_has_openais_shape(http, client: FakeClient):
    client.script = script(delta(" upon"), delta(" a"), finish="length")
    answer = (await complete(http)).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": " upon a", "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"]["total_tokens"] == 9
    assert client.requests[-1].prompt_text == "Once"
    assert client.requests[-1].messages is None


async def test_a_joined_stream_is_the_whole(http, client: FakeClient):
    client.script = script(
        delta("😀", logprobs=(scored("😀"),)), delta(" a", logprobs=(scored(" a"),))
    )
    whole = (await complete(http, logprobs=1)).json()["choices"][0]
    asked = {"stream": True, "logprobs": 1, "stream_options": {"include_usage": True}}
    chunks = chunks_of(await complete(http, **asked))
    assert chunks[-1]["choices"] == []
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    pieces = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    for name, values in whole["logprobs"].items():
        assert [v for piece in pieces for v in piece[name]] == values
    assert whole["logprobs"]["text_offset"] == [0, 1]


@pytest.mark.parametrize(
    ("prompt", "texts", "ids"),
    [
        ("Once", ["Once"], [None]),
        (["Once", "Twice"], ["Once", "Twice"], [None, None]),
        ([1, 2], [None], [(1, 2)]),
        ([[1, 2], [3]], [None, None], [(1, 2), (3,)]),
        (["Once", [3]], ["Once", None], [None, (3,)]),
    ],
)
async def test_prompts_of_every_form(http, client: FakeClient, prompt, texts, ids):
    client.script = script(delta("x"))
    answer = (await complete(http, prompt)).json()
    assert sorted(r.prompt_text or "" for r in client.requests) == sorted(t or "" for t in texts)
    assert {r.prompt_token_ids for r in client.requests} == set(ids)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
    assert answer["usage"]["prompt_tokens"] == 7 * len(texts)


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_are_numbered_prompt_by_prompt(http, client: FakeClient, stream: bool):
    ends = [delta(str(i), index=i, finish_reason="stop") for i in range(2)]
    client.script = [*ends, ChatDone(prompt_tokens=1, completion_tokens=2)]
    answer = await complete(http, ["a", "b"], n=2, stream=stream, echo=True)
    texts = ["", "", "", ""]
    for chunk in chunks_of(answer) if stream else [answer.json()]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["a0", "a1", "b0", "b1"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["Once upon a", [1, 2, 3]])
async def test_an_echoed_prompt_is_scored(http, client: FakeClient, stream: bool, prompt: Any):
    client.script = [ONCE, *script(delta(" x", logprobs=(scored(" x", -2.0),)), finish="length")]
    answer = await complete(http, prompt, echo=True, logprobs=1, max_tokens=1, stream=stream)
    assert client.requests[-1].params.prompt_logprobs == 1
    chunks = chunks_of(answer) if stream else [answer.json()]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == "Once upon a x"
    found: dict[str, list[Any]] = {}
    for choice in choices:
        for name, values in (choice["logprobs"] or {}).items():
            found.setdefault(name, []).extend(values)
    assert found["tokens"] == ["Once", " upon", " a", " x"]
    assert found["token_logprobs"] == [None, -1.0, -1.0, -2.0]
    assert found["text_offset"] == [0, 4, 9, 11]
    assert found["top_logprobs"][0] is None
    assert found["top_logprobs"][1] == {"!": -0.25, " upon": -1.0}


async def test_scoring_generates_nothing(http, client: FakeClient):
    client.script = [ONCE, *script(delta(" x", logprobs=(scored(" x"),)), finish="length")]
    asked = {"echo": True, "logprobs": 0, "max_tokens": 0}
    answer = (await complete(http, "Once upon a", **asked)).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Once upon a", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0]
    assert choice["logprobs"]["top_logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 0
    assert client.requests[-1].params.max_tokens == 1


async def test_token_ids_are_echoed_as_text(http, client: FakeClient):
    client.script = [ONCE, *script(delta(" x"))]
    answer = (await complete(http, [1, 2, 3], echo=True)).json()
    assert answer["choices"][0]["text"] == "Once upon a x"
    assert answer["choices"][0]["logprobs"] is None


async def test_a_token_of_the_models_own_in_front_has_no_text(http, client: FakeClient):
    own = PromptScored(token_ids=(0, 1), logprobs=(None, scored("Once")), first_bytes=tuple(b"<s>"))
    client.script = [own, *script(delta("x"))]
    asked = {"echo": True, "logprobs": 0, "max_tokens": 0}
    found = (await complete(http, "Once", **asked)).json()["choices"][0]
    assert found["text"] == "Once"
    assert found["logprobs"]["tokens"] == ["", "Once"]
    assert found["logprobs"]["text_offset"] == [0, 0]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ""}, "prompt", None),
        ({"prompt": []}, "prompt", None),
        ({"prompt": [[]]}, "prompt", None),
        ({"prompt": ["a", ""]}, "prompt", None),
        ({"prompt": None}, "prompt", None),
        ({"prompt": [1, -1]}, "prompt", None),
        ({"prompt": [1, 1000]}, "prompt", None),
        ({"prompt": ["a"] * 129}, "prompt", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"max_tokens": 5000}, "max_tokens", "context_length_exceeded"),
        ({"logprobs": 6}, "logprobs", None),
        ({"logprobs": True}, "logprobs", None),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"n": 9}, "n", None),
        ({"guided_json": {}, "guided_choice": ["a"]}, "guided_choice", "unsupported_parameter"),
    ],
)
async def test_bad_fields_are_named(http, fields, param, code):
    for stream in (False, True):
        answer = await complete(http, **{"stream": stream, **fields})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, code)


async def test_one_failed_prompt_fails_the_answer_and_frees_the_others(http, client: FakeClient):
    client.script = [delta("a"), RuntimeError("bug"), 5.0]
    answer = await complete(http, ["a", "b"])
    assert answer.status_code == 500


@given(st.text(max_size=20), st.data())
def test_offsets_are_those_of_the_text(text: str, data: st.DataObject):
    raw = text.encode("utf-8", "replace")
    text = raw.decode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)) | {0, len(raw)})
    pieces = [raw[a:b] for a, b in pairwise(cuts)]
    collected = ClassicLogprobs(0)
    for piece in pieces:
        shown = piece.decode(errors="replace")
        collected.add([TokenLogprob(token=shown, logprob=-1.0, bytes=tuple(piece))])
    for start, offset in zip(cuts, collected.whole["text_offset"], strict=False):
        begun = raw[:start].decode(errors="ignore")
        assert offset == len(begun)
