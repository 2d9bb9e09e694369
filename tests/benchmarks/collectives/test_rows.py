"""Rows of the races: what they compare, and that the limit inside the processes binds."""

import pytest

from benchmarks.collectives.crew import ranks_at
from benchmarks.collectives.rows import against, blank, judged, rate_row
from benchmarks.links.place import UNLIMITED, Place
from benchmarks.llm.rows import KEYS
from benchmarks.suites.collectives import _int8_alone_row, _link_rows, _memory_duels


def test_a_row_has_every_key_and_rates_instead_of_times():
    row = rate_row(blank("collectives", "x", "B/s"), [1.0, 2.0, 4.0], 8.0, 8.0)
    assert set(KEYS) <= set(row)
    assert (row["ours"], row["of_limit"]) == (4.0, 0.5)
    assert row["p20"] < row["ours"] < row["p80"]


def test_the_peer_is_the_one_that_ours_is_least_ahead_of():
    samples = {"ours": [1.0, 2.0], "slow": [4.0, 8.0], "gloo/near": [1.5, 3.0]}
    row = against({}, samples, "ours", ["slow", "gloo/near"])
    assert (row["peer"], row["vs_peer"]) == ("gloo/near", 1.5)
    assert row["peers"] == {"slow": 4.0, "gloo/near": 1.5}
    assert row["peer_version"].startswith("torch ")
    assert judged(row, "vs_peer", 2.0)["passed"] is False


def test_quick_takes_the_large_message_alone():
    assert {duel.size_bytes for duel in _memory_duels(True)} == {8 << 20}
    assert len(list(_memory_duels(True))) < len(list(_memory_duels(False)))


@pytest.mark.slow
def test_a_limited_link_binds_every_row_and_int8_goes_beyond_it():
    rate_bytes_s = 100e6
    rows = _link_rows(Place(kind="in-process", note="test"), rate_bytes_s, 3)
    *plain, int8 = rows
    for row in plain:
        assert row["link"] == "in-process"
        assert 0.5 < row["of_limit"] <= 1.01
        assert "gloo/library" not in row["peers"]
    assert int8["ours"] > rate_bytes_s
    assert 0 < int8["error"] < 0.05


@pytest.mark.slow
def test_what_int8_computes_is_a_rate_of_its_own():
    with ranks_at(UNLIMITED, ("shm",)) as crew:
        row = _int8_alone_row(crew, 10e9, 3)
    assert set(KEYS) <= set(row)
    assert row["rounds"] == 3
    assert row["p20"] <= row["ours"] <= row["p80"]
    assert row["of_limit"] == pytest.approx(row["ours"] / 10e9 * (1 + 132 / 256))
    assert row["peer"] is None
