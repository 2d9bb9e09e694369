"""The gate: off below its break-even, with both numbers in the decision."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.collectives.calls import Contract
from llm_engine.parallel.overlap_choice import (
    CHUNKS,
    LEAST_GAIN,
    StepCosts,
    choose_overlap,
    choose_wire,
    predicted_s,
)
from llm_engine.parallel.overlap_wire import LinkLine


def costs(compute_s: dict[int, float], rate: float = 1e6, latency_s: float = 0.0) -> StepCosts:
    return StepCosts(
        compute_s=compute_s,
        num_layers=2,
        bytes_per_token=100,
        idle=LinkLine(latency_s, rate),
    )


# 1024 tokens: 4 reductions of 102,400 bytes are 0.41 s at 1 MB/s.
EVEN = {1024: 0.4, 512: 0.2, 256: 0.1}


def test_on_where_there_is_as_much_to_hide_as_to_compute() -> None:
    num_chunks, decision = choose_overlap(1024, costs(EVEN), "here")
    assert num_chunks == 4
    assert decision.chosen == "on, 4 chunks"
    assert decision.case == "1024 tokens"
    assert any("hides 300.00 ms, costs 0.00 ms" in reason for reason in decision.reasons)
    assert {r.candidate for r in decision.rejected} == {"off", "2 chunks", "3 chunks"}


@pytest.mark.parametrize(
    "given_costs",
    [
        pytest.param(costs({1024: 0.4, 512: 0.201, 256: 0.101}, rate=1e12), id="nothing to hide"),
        pytest.param(costs(EVEN, latency_s=0.2), id="each exchange costs more than it hides"),
        pytest.param(costs({1024: 0.4, 512: 0.4, 256: 0.4}), id="chunks as slow as the whole"),
    ],
)
def test_off_below_the_break_even(given_costs: StepCosts) -> None:
    num_chunks, decision = choose_overlap(1024, given_costs, "here")
    assert num_chunks == 1
    assert decision.chosen == "off"
    assert "on" in {r.candidate for r in decision.rejected}
    hides, loses = (float(part.split()[1]) for part in decision.reasons[0].split(", "))
    assert hides <= loses


def test_few_chunks_where_small_ones_are_slow() -> None:
    num_chunks, _ = choose_overlap(1024, costs({1024: 0.4, 512: 0.21, 256: 0.2}), "here")
    assert num_chunks == 2


@given(
    compute_s=st.floats(1e-4, 10),
    penalty=st.floats(0, 1),
    rate=st.floats(1e4, 1e12),
    latency_s=st.floats(0, 1e-2),
    num_tokens=st.integers(1, 4096),
)
def test_what_is_chosen_is_never_predicted_slower_than_serial(
    compute_s: float, penalty: float, rate: float, latency_s: float, num_tokens: int
) -> None:
    measured = costs(
        {2048: compute_s, 1024: compute_s / 2 * (1 + penalty)}, rate=rate, latency_s=latency_s
    )
    num_chunks, _ = choose_overlap(num_tokens, measured, "here")
    chosen = measured.overlap(num_tokens, num_chunks)
    if num_chunks > 1:
        assert chosen.predicted_s < chosen.serial_s


@given(
    compute_s=st.floats(1e-4, 10),
    penalty=st.floats(0, 1),
    rate=st.floats(1e4, 1e12),
    asked=st.sampled_from(["auto", "on", "off"]),
)
def test_a_prediction_is_that_of_what_is_chosen(
    compute_s: float, penalty: float, rate: float, asked: str
) -> None:
    measured = costs({2048: compute_s, 1024: compute_s / 2 * (1 + penalty)}, rate=rate)
    found_s = predicted_s(1024, measured, CHUNKS, asked=asked)
    num_chunks = 1
    if asked != "off":
        num_chunks, decision = choose_overlap(1024, measured, "here", asked=asked)
        assert decision.asked == asked
    assert num_chunks > 1 or asked != "on"
    chosen = measured.overlap(1024, max(num_chunks, 2))
    assert found_s == (chosen.predicted_s if num_chunks > 1 else chosen.serial_s)


@given(exact_s=st.floats(1e-4, 10), int8_s=st.floats(1e-4, 10), error=st.floats(0, 1))
def test_int8_is_taken_where_it_pays_or_is_asked_for(
    exact_s: float, int8_s: float, error: float
) -> None:
    seconds: dict[Contract, float] = {"exact": exact_s, "int8": int8_s}
    errors: dict[Contract, float] = {"exact": 0.0, "int8": error}
    contract, decision = choose_wire(1024, seconds, errors, "here", asked="int8")
    assert (contract, decision.source) == ("int8", "explicit")
    contract, decision = choose_wire(1024, seconds, errors, "here", asked="auto")
    assert (contract == "int8") is (1 - int8_s / exact_s >= LEAST_GAIN)
    told = (*decision.reasons, *(r for other in decision.rejected for r in other.reasons))
    assert any(f"{error:.2g}" in reason for reason in told)


@given(num_rows=st.integers(1, 10_000))
def test_rows_between_measurements_lie_on_a_line(num_rows: int) -> None:
    measured = costs(EVEN)
    line = 0.4 * num_rows / 1024
    assert measured.of_rows(num_rows) == pytest.approx(max(line, 0.1))


def test_costs_need_a_measurement() -> None:
    with pytest.raises(ValueError, match="measure at least one number of rows"):
        costs({})


def test_exchanges_that_lose_to_computation_turn_overlap_off() -> None:
    """On a CPU the wire's thread waits for the core: half of the exchanges' time is too much."""
    even = costs(EVEN)
    idle, busy = even.idle, LinkLine(0.05, even.idle.bytes_s)
    assert choose_overlap(1024, replace(even, busy=idle), "here")[0] == 4
    num_chunks, decision = choose_overlap(1024, replace(even, busy=busy), "here")
    assert num_chunks == 1
    assert decision.chosen == "off"
    faster = LinkLine(0.0, 2 * idle.bytes_s)
    assert even.overlap(1024, 2) == replace(even, busy=faster).overlap(1024, 2), "noise gains none"
