"""Drafting by what it costs and what it achieves, on a clock of the test's own."""

from collections.abc import Callable
from typing import Any

import pytest

from kernels.ledger import Ledger
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig
from llm_engine.speculation.decision import decide_speculation, make_speculator
from llm_engine.speculation.ngram import NgramDrafter
from llm_engine.speculation.speculator import Speculator
from llm_engine.types import GenerationRequest

Make = Callable[..., GenerationRequest]


class Clock:
    """Asked before a step and after it, it adds the step's own cost to that of its rows."""

    def __init__(self, base_s: float, row_s: float) -> None:
        self.now_s, self.base_s, self.row_s, self.is_in_step = 0.0, base_s, row_s, False

    def __call__(self) -> float:
        self.is_in_step = not self.is_in_step
        if not self.is_in_step:
            self.now_s += self.base_s
        return self.now_s


def _run(toy_loop: Any, make_request: Make, clock: Clock, num_requests: int) -> Any:
    """Serve with drafts, the clock moving on with each row."""
    loop = toy_loop(speculator=Speculator(NgramDrafter, max_draft_tokens=6, clock=clock))
    of_last_two = loop._logits_of

    def timed(known: Any) -> Any:
        clock.now_s += clock.row_s
        return of_last_two(known)

    loop._logits_of = timed
    params = {"max_tokens": 120, "ignore_eos": True, "temperature": 0.4}
    loop.run(*(make_request(f"r{i}", b"abcab", seed=i, **params) for i in range(num_requests)))
    return loop


@pytest.mark.parametrize(
    ("base_s", "row_s", "num_requests", "is_drafting"),
    [(10e-3, 0.5e-3, 1, True), (2e-3, 2e-3, 24, False)],
)
def test_it_drafts_where_that_pays(
    toy_loop: Any,
    make_request: Make,
    base_s: float,
    row_s: float,
    num_requests: int,
    is_drafting: bool,
) -> None:
    clock = Clock(base_s, row_s)
    loop = _run(toy_loop, make_request, clock, num_requests)
    plain_s = 120 * (base_s + num_requests * row_s)
    if is_drafting:
        assert loop.answers.num_accepted_drafts > 30
        assert clock.now_s < 0.8 * plain_s
    else:
        assert clock.now_s < 1.05 * plain_s


def test_the_decision_is_recorded_with_its_reasons() -> None:
    ledger = Ledger()
    for setting, chosen in (("auto", "ngram"), ("ngram", "ngram"), ("off", "off")):
        config = EngineConfig(model="tiny", speculation=setting)
        decision = decide_speculation(config, can_take_back=True, ledger=ledger)
        assert decision.chosen == chosen
        assert decision.reasons
        speculator = make_speculator(config, decision, lambda: 0.0)
        assert (speculator is None) is (chosen == "off")
    assert len(ledger) == 3


def test_states_that_cannot_be_taken_back_rule_drafts_out() -> None:
    config = EngineConfig(model="tiny")
    decision = decide_speculation(config, can_take_back=False, ledger=Ledger())
    assert decision.chosen == "off"
    assert "taken out" in decision.reasons[0]
    with pytest.raises(InvalidConfig, match="ask for 'auto'"):
        decide_speculation(
            EngineConfig(model="tiny", speculation="ngram"), can_take_back=False, ledger=Ledger()
        )
