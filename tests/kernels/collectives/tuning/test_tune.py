"""Measuring: checked first, the same on all ranks, within its time."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kernels.collectives.algorithms import Algorithm
from kernels.collectives.choice import SEED, Question
from kernels.collectives.costs import ring_s
from kernels.collectives.group import Group
from kernels.collectives.sentinel import Sentinel
from kernels.collectives.topology import this_topology
from kernels.collectives.tuning.links import fit
from kernels.collectives.tuning.table import load, save
from kernels.collectives.tuning.trials import OPERATIONS, make_trial
from kernels.collectives.tuning.tune import TuneSettings, tune


def test_entries_are_the_same_on_all_ranks_and_hold_no_left_out_candidate(pair):
    first, second = pair.run("measured", size_bytes=4096)
    assert first["entries"] == second["entries"]
    assert first["links"] == second["links"]
    assert [entry["op"] for entry in first["entries"]] == list(OPERATIONS)
    for entry in first["entries"]:
        assert entry["us"]["least"] > 0
        assert entry["is_checked"]
    assert "shm/chain" not in first["told"]
    assert {"shm/two_shot", "gloo/gather_sum", "gloo/island"} - set(first["told"]) == {
        "gloo/island"
    }
    for fitted in first["links"].values():
        assert fitted["costs"]["ring_bytes_s"] > 1e6
        assert 0 < fitted["costs"]["latency_s"] < 1


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_not_written_or_not_added_is_found(operation):
    group = Group(rank=1, size=2, rendezvous="file:///nowhere")
    fabric = SimpleNamespace(group=group)
    trial = make_trial(fabric, operation, 101, torch.bfloat16)
    lazy = Algorithm(
        name="lazy",
        operation=operation,
        transport="shm",
        contracts=("exact",),
        run=lambda *_: None,
        cost_s=ring_s,
    )
    trial.reset()
    trial.run(lazy)
    assert not trial.is_right()


@pytest.mark.slow
def test_what_hangs_without_a_word_is_left_out_and_what_cannot_be_tried_is_told():
    settings = TuneSettings(
        num_ranks=2, operations=("broadcast",), contracts=("exact",), sizes_bytes=(64,),
        transports=("shm",), num_rounds=1,
    )  # fmt: skip
    told = {"push": "torch sees no device"}
    table = tune(settings, this_topology(), left_out=told)
    assert table.rejected == told
    with pytest.raises(RuntimeError, match=r"no report for 1e-09 s: it hangs"):
        tune(replace(settings, silence_s=1e-9), this_topology())


def test_transports_of_two_devices_are_not_measured_together():
    with pytest.raises(ValueError, match="all of one device"):
        TuneSettings(num_ranks=2, transports=("shm", "nccl"))
    assert TuneSettings(num_ranks=2, transports=("nccl", "push")).device == "cuda"


def test_a_fit_finds_the_constants_it_was_made_from():
    sizes = (4096, 65536, 1 << 20, 1 << 22)
    latency_s, rate_bytes_s, residual = fit(sizes, [20e-6 + size / 3e9 for size in sizes])
    assert latency_s == pytest.approx(20e-6, rel=1e-3)
    assert rate_bytes_s == pytest.approx(3e9, rel=1e-3)
    assert residual < 1e-3


def test_tuning_fills_a_table_that_is_used_from_then_on(tmp_path):
    settings = TuneSettings(
        num_ranks=2,
        num_rounds=3,
        operations=("all_reduce", "broadcast"),
        contracts=("exact",),
        sizes_bytes=(8192,),
        transports=("shm",),
        limit_s=60,
        candidate_timeout_s=20,
    )
    here = this_topology(readers=())
    table = tune(settings, here)
    assert table.is_complete
    assert [entry.op for entry in table.entries] == ["all_reduce", "broadcast"]
    assert set(table.model) == {"shm"}
    assert load(save(table, tmp_path / "t.json"), here, 2) == table


def test_a_time_limit_is_kept():
    settings = TuneSettings(num_ranks=2, limit_s=0.3)
    with pytest.raises(RuntimeError, match=r"no link of 2 ranks was measured within 0\.3 s"):
        tune(settings, this_topology(readers=()))


def test_drift_makes_every_rank_fall_back_at_the_same_call(pair):
    (seen, said), (other_seen, other_said) = pair.run("drifting")
    assert seen == other_seen == ["shm/chain"] * 5 + ["shm/one_shot"] * 3
    assert said == other_said
    assert "the table says 0 us" in said[0]


def test_times_as_in_the_table_change_nothing():
    key = ("all_reduce", "exact", 1024)
    knowledge = SEED.__class__(
        links=SEED.links, chosen={key: "shm/ring"}, times_us={key: 100.0}, evidence="test"
    )
    sentinel = Sentinel(knowledge, every=3, window=3)
    question = Question(
        operation="all_reduce", contract="exact", size_bytes=1500, dtype="float32", num_ranks=2
    )
    due = [sentinel.is_due(question, "shm/ring") for _ in range(6)]
    assert due == [False, False, True, False, False, True]
    assert not any(sentinel.is_due(question, "shm/one_shot") for _ in range(6))
    assert [sentinel.note(question, us) for us in (100, 500, 129)] == [None, None, None]
    assert [sentinel.note(question, us) is None for us in (131, 131, 90)] == [True, True, False]
