"""The load simulation against a published table, queueing theory, and its own invariants."""

import itertools
import math
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.plan.load import Load, forecast, forecast_range, saturation_per_s, simulate
from llm_engine.plan.queueing import ServiceTimes, Visit, visits

# Closed loop; prefill 3236.78 -> 6222.72 tokens a second, then 270,000 -> 1.05 M tokens of cache:
# clients, prompt, answer, seconds an answer token, P95 TTFT in seconds of the three machines.
PUBLISHED = [
    (8, 64000, 1000, 0.05, (154.7, 124.8, 45.5)),
    (8, 90000, 1000, 0.05, (287.7, 221.5, 84.3)),
    (12, 48000, 800, 0.06, (155.7, 119.7, 57.6)),
    (16, 32000, 1000, 0.06, (124.3, 102.1, 33.0)),
    (16, 32000, 1000, 0.02, (158.9, 73.0, 73.0)),
]
MACHINES = [(3236.78, 270e3), (6222.72, 270e3), (6222.72, 1.05e6)]
# The table's run length is not recorded. A few hundred requests from an empty machine is assumed,
# and a cell must lie within three standard deviations of such runs (1 to 5 % each).
PUBLISHED_RUN, SIGMAS = 300, 3


def machine(rate=6222.72, kv=1.05e6, tpot=0.05, **fields):
    return ServiceTimes(prefill_s_per_token=1 / rate, decode_s=tpot, kv_tokens=kv, **fields)


def closed(clients=8, prompt=64000, answer=1000, **fields):
    return Load(prompt_tokens=prompt, answer_tokens=answer, num_clients=clients, **fields)


def cells():
    for clients, prompt, answer, tpot, seconds in PUBLISHED:
        for (rate, kv), published in zip(MACHINES, seconds, strict=True):
            yield closed(clients, prompt, answer), machine(rate, kv, tpot), published


def p95s(load, times, num_runs=16):
    runs = (simulate(load, times, seed, PUBLISHED_RUN) for seed in range(num_runs))
    return [float(np.percentile([visit.ttft_s for visit in run], 95)) for run in runs]


@pytest.mark.parametrize(("load", "times", "published"), list(cells()))
def test_published_cells_lie_within_the_sampling_error(load, times, published):
    found = p95s(load, times)
    assert abs(statistics.fmean(found) - published) <= SIGMAS * statistics.stdev(found)


def test_the_published_table_is_met_within_a_few_per_cent():
    errors = [
        abs(statistics.fmean(p95s(load, times)) / published - 1)
        for load, times, published in cells()
    ]
    assert statistics.median(errors) < 0.05


def test_faster_prefill_alone_helps_less_than_the_cache():
    for clients, prompt, answer, tpot, _ in PUBLISHED[:4]:
        load = closed(clients, prompt, answer)
        base, faster, both = (
            forecast(load, machine(r, k, tpot)).ttft_p95_s.value for r, k in MACHINES
        )
        assert base / faster < 1.4
        assert base / both > 2.5


def test_the_example_of_the_page_is_what_a_forecast_says():
    waits = [forecast(closed(), machine(rate, kv)).ttft_p95_s.value for rate, kv in MACHINES]
    page = (Path(__file__).resolve().parents[2] / "docs" / "planning.md").read_text()
    example = page.partition("Eight callers")[2].partition("\n\n")[0]
    for wait_s in waits:
        assert f"{wait_s:.0f} s" in example


def test_what_binds_changes_with_what_is_scarce():
    load = closed()
    assert forecast(load, machine(rate=6222.72, kv=270e3)).binds == "kv"
    assert forecast(load, machine(rate=3236.78, kv=1.05e6)).binds == "prefill"


def test_equal_prompts_wait_as_the_md1_queue_says():
    utilisation, prompt = 0.7, 1000
    times = machine(rate=1000, kv=1e9, tpot=1e-6)
    load = Load(prompt_tokens=prompt, answer_tokens=1, arrivals_per_s=utilisation, spread=0.0)
    means = [
        statistics.fmean(v.ttft_s for v in simulate(load, times, seed, 6000)[1000:])
        for seed in range(8)
    ]
    expected_s = 1 + utilisation / (2 * (1 - utilisation))
    error = statistics.stdev(means) / math.sqrt(len(means))
    assert abs(statistics.fmean(means) - expected_s) < 4 * error


def test_throughput_of_a_full_closed_loop_is_the_prefill_rate():
    found = forecast(closed(clients=16, prompt=32000, spread=0.0), machine(tpot=0.02))
    assert found.requests_per_s == pytest.approx(6222.72 / 32000, rel=1e-3)
    assert found.tokens_per_s == pytest.approx(found.requests_per_s * 33000)


def test_a_prompt_alone_takes_its_prefill_and_no_more():
    times = machine(rate=1000, prefill_s_per_token2=1e-6, shares_cards=True)
    load = closed(clients=1, prompt=4000, answer=10, spread=0.0)
    for visit in simulate(load, times, 0, 3):
        assert visit.ttft_s == pytest.approx(4.0 + 16.0)
        assert visit.end_s - visit.first_token_s == pytest.approx(10 * 0.05)


def test_a_pipeline_gives_the_first_token_after_its_other_stages():
    """The next prompt begins before: a caller waits longer, the machine gives as much."""
    load = closed(clients=3, prompt=4000, answer=10, spread=0.0)
    plain, stages = (simulate(load, machine(fill_s=s), 0, 60)[30:] for s in (0.0, 0.5))
    waits = [statistics.fmean(v.ttft_s for v in found) for found in (plain, stages)]
    assert waits[1] > waits[0] - 1e-9
    alone = simulate(
        closed(clients=1, prompt=4000, answer=10, spread=0.0), machine(fill_s=0.5), 0, 5
    )
    assert all(v.ttft_s == pytest.approx(4000 / 6222.72 + 0.5) for v in alone)
    ends = [v.end_s - v.first_token_s for v in alone]
    assert all(end == pytest.approx(10 * 0.05) for end in ends)


def test_a_cache_for_one_lets_two_callers_take_turns():
    load = closed(clients=2, prompt=4000, answer=100, spread=0.0)
    times = machine(rate=1000, kv=4100, tpot=0.05)
    for visit in simulate(load, times, 0, 10)[2:]:
        # The other one's prefill and answer, then its own prefill.
        assert visit.ttft_s == pytest.approx(4 + 5 + 4)
    # Room for both: nobody waits, 4 s. Twice the prefill rate: 2 + 5 + 2 s.
    found = forecast(load, times)
    assert found.binds == "kv"
    assert found.relief["kv"] == pytest.approx(13 / 4)
    assert found.relief["prefill"] == pytest.approx(13 / 9)


def test_the_interval_is_where_a_long_run_ends():
    load, times = closed(), machine(rate=6222.72, kv=270e3)
    found = forecast(load, times).ttft_p95_s
    long_run = [visit.ttft_s for visit in simulate(load, times, 99, 20_000)[1000:]]
    half = (found.high - found.low) / 2
    assert abs(found.value - float(np.percentile(long_run, 95))) < 2 * half


def test_shared_cards_run_a_chunk_and_a_decode_step_in_turn():
    times = machine(rate=1000, tpot=0.5, chunk_tokens=1000, shares_cards=True)
    first = Visit(1000, 100, 0.0)
    second = Visit(4000, 1, 0.0)
    ended = list(visits(times, iter([first, second]), lambda _: None))
    # Four chunks of one second, each with a step of half a second for the sequence that decodes.
    assert [visit.prompt_tokens for visit in ended] == [4000, 1000]
    assert second.first_token_s == pytest.approx(1 + 4 * 1.5)
    assert first.end_s == pytest.approx(7 + (100 - 4) * 0.5)


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 12),
    slots=st.integers(1, 5),
    answer=st.integers(1, 300),
    shares=st.booleans(),
    each=st.sampled_from([0.0, 0.002]),
    seed=st.integers(0, 5),
)
def test_the_cache_is_never_overfilled_and_nobody_is_overtaken(
    clients, slots, answer, shares, each, seed
):
    load = closed(clients, prompt=1000, answer=answer)
    times = machine(
        rate=5000, kv=slots * load.longest_request, shares_cards=shares, decode_s_each=each
    )
    run = simulate(load, times, seed, 60)
    for visit in run:
        assert visit.arrival_s <= visit.admitted_s < visit.first_token_s < visit.end_s
    by_arrival = sorted(run, key=lambda v: v.admitted_s)
    for before, after in itertools.pairwise(by_arrival):
        assert before.arrival_s <= after.arrival_s
        assert after.admitted_s >= before.first_token_s - 1e-9
    for now_s in (v.admitted_s for v in run):
        held = sum(v.kv_tokens for v in run if v.admitted_s <= now_s < v.end_s)
        assert held <= times.kv_tokens


def test_a_forecast_repeats_exactly():
    load = Load(prompt_tokens=8000, answer_tokens=200, arrivals_per_s=0.4)
    assert forecast(load, machine()) == forecast(load, machine())


def test_more_of_a_resource_is_never_slower_beyond_the_interval():
    load = Load(prompt_tokens=32000, answer_tokens=500, arrivals_per_s=0.1)
    base = forecast(load, machine(rate=6000, kv=300e3))
    for better in (machine(rate=6600, kv=300e3), machine(rate=6000, kv=330e3)):
        assert forecast(load, better).ttft_p95_s.value <= base.ttft_p95_s.high


def test_arrivals_above_the_limit_have_no_finite_wait():
    limit = saturation_per_s(closed(clients=1), machine())
    load = Load(prompt_tokens=64000, answer_tokens=1000, arrivals_per_s=1.1 * limit)
    found = forecast(load, machine())
    assert found.is_overloaded
    assert found.ttft_p95_s.value == math.inf
    assert found.requests_per_s == pytest.approx(limit)


def test_the_range_holds_the_forecasts_of_its_ends():
    load, slow, likely, fast = closed(), machine(5000), machine(6000), machine(7000)
    found = forecast_range(load, fast, likely, slow)
    assert found.ttft_p95_s.low < forecast(load, likely).ttft_p95_s.low
    assert found.ttft_p95_s.high > forecast(load, likely).ttft_p95_s.high


def test_a_forecast_takes_less_than_a_third_of_a_second():
    begin_s = time.process_time()
    forecast(closed(clients=32, prompt=32000), machine())
    assert time.process_time() - begin_s < 0.3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: closed(clients=0), "exactly one"),
        (
            lambda: Load(prompt_tokens=1, answer_tokens=1, num_clients=1, arrivals_per_s=1),
            "exactly",
        ),
        (lambda: closed(prompt=0), "at least 1"),
        (lambda: closed(spread=1.0), "without 1"),
        (lambda: forecast(closed(prompt=200_000), machine(kv=270e3)), "longest request"),
        (lambda: forecast(closed(), machine(), num_requests=1), "num_requests is 1"),
        (lambda: machine(kv=0), "kv_tokens is 0"),
        (lambda: machine(decode_s_each=-1.0), "decode_s_each is -1.0"),
    ],
)
def test_what_cannot_be_answered_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
