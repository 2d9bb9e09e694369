"""Figures from token times, against numpy and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.llm.statistics import (
    agreement,
    decode_tok_s,
    gaps_s,
    percentile,
    prefill_tok_s,
    ratio_of_rounds,
    throughput_tok_s,
    tpot_s,
    ttft_s,
)

TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


def answer(times, sent=0.0, tokens=None):
    return {"times": times, "sent": sent, "tokens": tokens or [1] * len(times)}


@given(TIMES, st.floats(0, 100))
def test_percentile_equals_numpy(samples, percent):
    assert percentile(samples, percent) == pytest.approx(np.percentile(samples, percent))


def test_a_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 50)


def test_first_token_and_rates_count_from_the_send_time():
    assert ttft_s(answer([3.5], sent=1.5)) == 2.0
    assert prefill_tok_s(512, answer([3.5], sent=1.5)) == 256.0
    assert tpot_s(answer([1.0, 2.0, 4.0])) == 1.5
    assert math.isnan(tpot_s(answer([1.0])))


def test_decode_counts_only_the_span_in_which_all_decode():
    early, late = answer([1.0, 2.0, 3.0, 4.0]), answer([2.5, 3.5, 4.5, 5.5])
    assert decode_tok_s([early, late]) == pytest.approx(3 / 1.5)
    assert math.isnan(decode_tok_s([answer([1.0]), answer([2.0])]))


def test_tokens_of_one_event_are_one_gap():
    assert gaps_s([answer([1.0, 1.0, 2.0]), answer([5.0, 8.0])]) == [1.0, 3.0]


def test_throughput_runs_from_the_first_arrival_to_the_last_token():
    assert throughput_tok_s([answer([2.0, 3.0], sent=1.0), answer([6.0], sent=4.0)]) == 0.6


def test_a_ratio_is_taken_within_rounds_that_both_have():
    ours, theirs = {0: 10.0, 1: 30.0, 2: 8.0, 3: 99.0}, {0: 5.0, 1: 10.0, 2: 8.0}
    assert ratio_of_rounds(ours, theirs, higher_is_better=True) == 2.0
    assert ratio_of_rounds(ours, theirs, higher_is_better=False) == 0.5
    assert ratio_of_rounds(ours, {9: 1.0}, higher_is_better=True) is None


@given(st.dictionaries(st.integers(0, 9), st.floats(0.1, 1e3), min_size=1))
def test_an_engine_against_itself_is_one(samples):
    assert ratio_of_rounds(samples, samples, higher_is_better=True) == 1.0


def test_agreement_ends_at_the_first_difference():
    ours = [answer([], tokens=[1, 2, 3, 4]), answer([], tokens=[5, 6])]
    theirs = [answer([], tokens=[1, 2, 9, 4]), answer([], tokens=[5, 6])]
    assert agreement(ours, theirs) == 0.75
