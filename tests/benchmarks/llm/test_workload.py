"""Prompts and traces: the same for every engine, unlike each other."""

import statistics
from itertools import pairwise

import pytest

from benchmarks.llm import measurements
from benchmarks.llm.model_facts import ModelFacts, read_model_facts
from benchmarks.llm.workload import Mix, poisson_trace, prose_of
from llm_engine.weights.resolve import BUNDLED_NAME, resolve


@pytest.fixture(scope="module")
def model() -> ModelFacts:
    return read_model_facts(resolve(BUNDLED_NAME).path)


@pytest.fixture(scope="module")
def prose(model):
    return prose_of(model.vocabulary)


def test_a_key_determines_a_prompt_and_no_two_begin_alike(prose, model):
    prompts = prose.prompts(64, 4096, "prefill 4096/0")
    assert prompts == prose.prompts(64, 4096, "prefill 4096/0")
    assert {len(prompt) for prompt in prompts} == {4096}
    assert len({tuple(prompt[:2]) for prompt in prompts}) == 64
    assert all(0 <= token < len(model.vocabulary) for token in prompts[0])


def test_prompts_are_words_of_the_documents(prose, model):
    prompts = prose.prompts(16, 400, "words")
    words = [model.vocabulary[token] for prompt in prompts for token in prompt]
    assert all(word.startswith("Ġ") or word in ".,;:" for word in words)
    # A single passage may be a table; all of them together are prose.
    assert len(set(words)) > 400


def test_a_trace_is_determined_by_its_key_and_has_the_rate_asked_for(prose):
    make = lambda key: poisson_trace(prose, Mix(), count=600, rate_hz=5.0, key=key)  # noqa: E731
    trace = make("a")
    assert trace == make("a")
    assert trace != make("b")
    at = [arrival for _, _, arrival in trace]
    assert at[0] == 0.0
    assert at == sorted(at)
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.15)
    assert statistics.pstdev(gaps) == pytest.approx(0.2, rel=0.2)  # exponential: both are 1/rate


def test_the_rate_of_the_load_is_a_share_of_capacity():
    sizes = measurements.Sizes(mix=Mix(prompt_tokens=(100,), new_tokens=(50,)))
    rate_hz = measurements.arrival_rate_hz(sizes, [1000.0], [100.0])
    assert rate_hz == pytest.approx(measurements.LOAD / 0.6)


def test_every_round_has_prompts_of_its_own(prose):
    for measurement in measurements.closed_measurements(prose, measurements.QUICK):
        first, again, second = (measurement.requests(index) for index in (0, 0, 1))
        assert first == again
        assert first[0][0] != second[0][0]


def test_facts_of_the_bundled_model(model):
    # 106.2 million weights in the layers' matrices, two operations each; 30 layers of 9 × 64.
    assert model.linear_flops == pytest.approx(2 * 106.17e6, rel=1e-3)
    assert model.attention_flops == 4 * 30 * 9 * 64
    size = resolve(BUNDLED_NAME).path.stat().st_size
    assert 0.95 * size < model.weight_bytes < size
    alone = model.prefill_s(1, 1e9, 1e9)
    assert model.prefill_s(1000, 1e9, 1e9) > 1000 * alone
