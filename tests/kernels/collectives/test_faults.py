"""Ranks that die, stop, dawdle or belong to the past: named, in time, and never a hang."""

import signal
from pathlib import Path

import pytest


def survivors(crew, victim, **arguments):
    crew.order("fail", victim=victim, **arguments)
    return [crew.read(rank)["value"] for rank in range(crew.size) if rank != victim]


@pytest.mark.parametrize("algorithm", ["shm/two_shot", "gloo/library", "tcp/pairwise"])
def test_a_killed_rank_is_named_at_once(make_crew, algorithm):
    crew = make_crew(timeout_s=20).start()
    (answer,) = survivors(crew, 1, how="SIGKILL", algorithm=algorithm)
    kind, message, took_s, again = answer
    assert kind == "RankLost"
    assert "rank 1" in message
    assert "epoch 1" in message
    assert took_s < 2
    assert again.startswith("GroupBroken")


@pytest.mark.parametrize("algorithm", ["shm/two_shot", "gloo/library", "tcp/pairwise"])
def test_a_stopped_rank_is_named_at_the_time_limit(make_crew, algorithm):
    crew = make_crew(timeout_s=1.5).start()
    (answer,) = survivors(crew, 1, how="SIGSTOP", algorithm=algorithm)
    kind, message, took_s, again = answer
    assert kind == "RankStalled"
    assert "rank 1" in message
    assert 1.4 < took_s < 5
    assert again.startswith("GroupBroken")


def test_a_slow_rank_within_the_limit_is_waited_for_and_beyond_it_named(make_crew):
    crew = make_crew(timeout_s=1.5).start()
    assert crew.run("fail", how="sleep", victim=1, wait_s=0.4)[0][0] == "done"
    (answer,) = survivors(crew, 1, how="sleep", wait_s=3.0)
    assert answer[0] == "RankStalled"
    late = crew.read(1)["value"]
    assert late[0] in ("GroupBroken", "RankStalled", "RankLost")


def test_everyone_learns_of_a_loss_on_four_ranks(make_crew):
    crew = make_crew(size=4, timeout_s=20, transports=("shm",)).start()
    answers = survivors(crew, 2, how="SIGKILL", algorithm="shm/chain")
    assert all("rank 2" in message for _, message, _, _ in answers)
    assert all(took_s < 3 for _, _, took_s, _ in answers)


def test_a_missing_rank_is_named_when_the_group_meets(make_crew):
    crew = make_crew(timeout_s=1.5).begin(range(1))
    said = crew.read(0)["error"]
    assert said.startswith("RankStalled")
    assert "missing: ranks (1,)" in said


def test_the_group_is_founded_anew_and_the_past_is_refused(make_crew):
    old = make_crew(timeout_s=2).start()
    old.signal(1, signal.SIGSTOP)
    new = make_crew(epoch=1).start()
    assert new.run("exact_all_reduce", dtype="float32", count=9, reduction="sum")
    old.order("fail", how="sleep", victim=9, is_warm=False)
    kind, message, _, _ = old.read(0)["value"]
    assert kind == "StaleEpoch"
    assert "the group is at epoch 1" in message
    late = make_crew().begin(range(1))
    assert late.read(0)["error"].startswith("StaleEpoch")


def test_no_name_stays_in_shared_memory(pair):
    for process in pair.processes:
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        ours = [line for line in maps if "lanewise-" in line and ".so" not in line]
        assert len(ours) >= 3
        assert all(line.endswith("(deleted)") for line in ours)
