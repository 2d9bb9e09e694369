"""The fitted step time, the chunk it affords, and the choice between copying and computing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.ledger import Ledger
from llm_engine.scheduling.preemption import PreemptionPolicy
from llm_engine.scheduling.step_time import StepShape, StepTimeModel

TRUE = (4e-3, 1e-3, 5e-4, 3e-4, 2e-8)


def seconds(shape: StepShape) -> float:
    return sum(c * v for c, v in zip(TRUE, shape.features, strict=True))


def trained(noise: float = 0.0, seed: int = 1) -> StepTimeModel:
    model, chooser = StepTimeModel(), random.Random(seed)
    for _ in range(300):
        prompt = chooser.choice([0, 0, 16, 64, 200, 512])
        rows = chooser.randint(0, 32)
        shape = StepShape(prompt, rows, (prompt + rows) * chooser.randint(1, 4000))
        model.observe(shape, seconds(shape) * (1 + noise * chooser.uniform(-1, 1)))
    return model


def test_it_finds_the_terms_of_a_linear_machine() -> None:
    assert trained().coefficients == pytest.approx(TRUE, rel=1e-3)


def test_noise_leaves_predictions_close() -> None:
    model = trained(noise=0.2)
    shape = StepShape(256, 8, 256 * 1000)
    assert model.predict_s(shape) == pytest.approx(seconds(shape), rel=0.15)


def test_terms_are_never_negative() -> None:
    model = StepTimeModel()
    for rows, duration in ((1, 0.03), (8, 0.02), (32, 0.01)):
        model.observe(StepShape(0, rows, rows), duration)
    assert min(model.coefficients) >= 0.0


@settings(max_examples=80, deadline=None)
@given(
    bound=st.floats(1e-4, 0.5),
    start=st.integers(0, 8000),
    most=st.integers(1, 2048),
)
def test_the_largest_chunk_is_within_the_bound_and_one_more_is_not(
    bound: float, start: int, most: int
) -> None:
    model = trained()
    chunk = model.largest_chunk(bound, start, most=most)
    assert chunk <= most
    if chunk:
        assert model.prompt_s(start, chunk) <= bound
    if chunk < min(most, 1024):
        assert model.prompt_s(start, chunk + 1) > bound


def test_an_untried_model_starts_small_and_doubles() -> None:
    model = StepTimeModel()
    sizes = []
    for _ in range(5):
        sizes.append(model.largest_chunk(10.0, 0, most=512))
        model.observe(StepShape(sizes[-1], 1, sizes[-1] ** 2), 1e-3)
    assert sizes == [32, 64, 128, 256, 512]


def policy(asked: str, rate: float, ledger: Ledger) -> PreemptionPolicy:
    return PreemptionPolicy(asked, trained(), 1000.0, rate, ledger.record)


def test_preemption_takes_what_is_faster_and_says_so() -> None:
    ledger = Ledger()
    slow, fast = policy("auto", 1e5, ledger), policy("auto", 1e10, ledger)
    assert not slow.should_copy(1000)
    assert fast.should_copy(1000)
    assert [decision.chosen for decision in ledger] == ["recompute", "copy"]
    assert all("ms" in decision.reasons[0] for decision in ledger)
    assert fast.should_copy(1000)
    assert len(ledger) == 2


@pytest.mark.parametrize(("asked", "copies"), [("copy", True), ("recompute", False)])
def test_what_was_asked_for_is_done(asked: str, copies: bool) -> None:
    ledger = Ledger()
    assert policy(asked, 1e5 if copies else 1e10, ledger).should_copy(10) is copies
    (decision,) = ledger
    assert (decision.asked, decision.chosen, decision.source) == (asked, asked, "explicit")


def test_without_a_host_tier_auto_computes_again() -> None:
    ledger = Ledger()
    assert not policy("auto", 0.0, ledger).should_copy(10)
    assert "host_cache_bytes is 0" in next(iter(ledger)).reasons[0]


def test_a_prediction_is_trusted_only_near_what_was_measured():
    model, decode, prompt = StepTimeModel(), StepShape(0, 4, 400), StepShape(64, 0, 2080)
    for _ in range(7):
        model.observe(decode, 2e-3)
    assert model.trusted_s(decode) is None
    model.observe(decode, 2e-3)
    assert model.trusted_s(decode) == pytest.approx(2e-3, rel=0.01)
    assert model.trusted_s(prompt) is None
    model.observe(StepShape(32, 0, 528), 8e-3)
    assert model.trusted_s(prompt) == pytest.approx(model.predict_s(prompt))
