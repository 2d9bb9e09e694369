"""How many drafts pay: by the cost of a row and the odds of a guess."""

import random

import pytest

from llm_engine.speculation.cost import StepCost, best_lengths


def _measured(base_s: float, row_s: float, rows: list[int], num: int = 50) -> StepCost:
    cost = StepCost()
    for _ in range(num):
        for count in rows:
            cost.observe(count, base_s + row_s * count)
    return cost


def test_a_line_is_found() -> None:
    cost = _measured(8e-3, 1e-3, [1, 4, 9])
    assert cost.seconds(1) == pytest.approx(9e-3, rel=0.03)
    assert cost.seconds(16) == pytest.approx(24e-3, rel=0.03)


def test_without_other_rows_a_row_is_taken_as_cheap_and_tried() -> None:
    cost = _measured(10e-3, 0.0, [1])
    assert best_lengths([0.5], [8], 1, cost)[0] > 0


def test_what_was_measured_long_ago_is_forgotten() -> None:
    cost = _measured(0.0, 10e-3, [1, 8])
    assert best_lengths([0.6], [8], 1, cost) == [0]
    for _ in range(2000):
        cost.observe(1, 10e-3)
    assert best_lengths([0.6], [8], 1, cost)[0] > 0


def test_length_grows_with_acceptance_and_shrinks_with_cost() -> None:
    cheap, dear = _measured(9e-3, 0.5e-3, [1, 8]), _measured(9e-3, 4e-3, [1, 8])
    by_acceptance = [best_lengths([a], [8], 1, cheap)[0] for a in (0.05, 0.4, 0.7, 0.95)]
    assert by_acceptance == sorted(by_acceptance)
    assert by_acceptance[0] == 0
    assert by_acceptance[-1] == 8
    assert best_lengths([0.7], [8], 1, dear)[0] < by_acceptance[2]


def test_a_large_batch_drafts_nothing_that_a_single_sequence_would() -> None:
    """Where rows cost what tokens are worth, as once weights are read anyway, guesses lose."""
    cost = _measured(4e-3, 1.5e-3, [1, 8, 32])
    assert best_lengths([0.7], [8], 1, cost)[0] > 0
    assert best_lengths([0.7] * 32, [8] * 32, 32, cost) == [0] * 32


def test_limits_are_kept() -> None:
    cost = _measured(10e-3, 0.1e-3, [1, 8])
    assert best_lengths([1.0, 1.0], [3, 0], 2, cost) == [3, 0]


def test_a_step_that_something_else_held_up_counts_little() -> None:
    cost = _measured(10e-3, 0.0, [1, 2])
    cost.observe(2, 5.0)
    assert cost.seconds(1) < 15e-3


def _serve(acceptance: float, num_seqs: int, base_s: float, row_s: float) -> float:
    """Seconds a token of sequences that learn their acceptance on the way, on a noisy machine."""
    chance, cost = random.Random(0), StepCost()
    believed = [0.5] * num_seqs
    seconds, num_tokens = 0.0, 0
    while num_tokens < 600 * num_seqs:
        lengths = [0] * num_seqs
        if cost.is_measured:
            lengths = best_lengths(believed, [6] * num_seqs, num_seqs, cost)
        num_rows = num_seqs + sum(lengths)
        step_s = (base_s + row_s * num_rows) * chance.uniform(0.95, 1.05)
        cost.observe(num_rows, step_s)
        seconds += step_s
        for i, length in enumerate(lengths):
            num_right = 0
            while num_right < max(length, 1) and chance.random() < acceptance:
                num_right += 1
            outcomes = [1.0] * num_right + [0.0] * (num_right < max(length, 1))
            for outcome in outcomes:
                believed[i] += 0.1 * (outcome - believed[i])
            num_tokens += 1 + min(num_right, length)
    return seconds / num_tokens


@pytest.mark.parametrize("num_seqs", [1, 8])
@pytest.mark.parametrize("acceptance", [0.05, 0.4, 0.9])
@pytest.mark.parametrize(("base_s", "row_s"), [(4.7e-3, 1.6e-3), (6e-3, 0.3e-3)])
def test_it_comes_near_the_best_fixed_length(
    acceptance: float, num_seqs: int, base_s: float, row_s: float
) -> None:
    best_s = min(
        (base_s + row_s * num_seqs * (1 + length))
        / (num_seqs * sum(acceptance**i for i in range(length + 1)))
        for length in range(7)
    )
    assert _serve(acceptance, num_seqs, base_s, row_s) < 1.08 * best_s
