"""The official client, strict about every field, against the whole running service."""

import io

import pytest
from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI
from PIL import Image

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(openai):
    return next(m.id for m in openai.models.list() if "smollm2" in m.id)


QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def test_models_are_listed_and_found(openai, model):
    assert {m.id for m in openai.models.list()} == {model, "motion-small"}
    assert openai.models.retrieve(model).id == model
    with pytest.raises(NotFoundError):
        openai.models.retrieve("no-such-model")


def test_a_chat_answers_with_the_right_city(openai, model):
    answer = openai.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=40
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_joined_stream_equals_the_answer(openai, model):
    asked = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 40}
    whole = openai.chat.completions.create(**asked)
    stream = openai.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    # The second prompt is in the cache, so only what was reused may differ.
    counted = {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert chunks[-1].usage.model_dump(include=counted) == whole.usage.model_dump(include=counted)
    assert len({c.id for c in chunks}) == 1


def test_a_seed_repeats_and_choices_differ(openai, model):
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "Invent a name for a boat."}],
        "seed": 7,
        "n": 2,
        "max_tokens": 24,
        "temperature": 1.2,
    }
    first, second = (openai.chat.completions.create(**asked) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert texts[0] != texts[1]


def test_logprobs_and_stop(openai, model):
    answer = openai.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count from one to ten in digits."}],
        temperature=0,
        max_tokens=40,
        logprobs=True,
        top_logprobs=3,
        stop=["5"],
    )
    choice = answer.choices[0]
    assert "5" not in (choice.message.content or "")
    assert choice.logprobs is not None
    assert choice.logprobs.content
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob <= 0


def test_the_callers_faults_have_their_own_errors(running_service, openai, model):
    stranger = OpenAI(base_url=f"{running_service.url}/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(AuthenticationError):
        stranger.models.list()
    with pytest.raises(NotFoundError):
        openai.chat.completions.create(model="nobody", messages=QUESTION)
    long = [{"role": "user", "content": "word " * 20_000}]
    with pytest.raises(BadRequestError) as refusal:
        openai.chat.completions.create(model=model, messages=long, stream=True)
    assert refusal.value.code == "context_length_exceeded"


def test_a_video_is_created_polled_downloaded_and_deleted(openai, picture):
    video = openai.videos.create_and_poll(
        model="motion-small",
        prompt="pan left",
        seconds="1",
        size="1280x720",
        input_reference=("boat.png", picture(), "image/png"),
    )
    assert video.status == "completed", video.error
    assert video.progress == 100
    assert openai.videos.download_content(video.id).read()[4:8] == b"ftyp"
    thumbnail = openai.videos.download_content(video.id, variant="thumbnail").read()
    assert Image.open(io.BytesIO(thumbnail)).width > 0
    # Other tests make clips of other sizes, which the client's own type does not know.
    lenient = OpenAI(base_url=openai.base_url, api_key=openai.api_key, max_retries=0)
    listed = lenient.videos.list()
    assert video.id in {v.id for v in listed}
    assert openai.videos.delete(video.id).deleted
    with pytest.raises(NotFoundError):
        openai.videos.retrieve(video.id)
