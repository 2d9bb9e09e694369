"""Ranks as real processes that die, stop, dawdle and disagree: named in time, and founded anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kernels.collectives.errors import CollectiveError, MismatchedCall, RankLost
from kernels.collectives.topology import this_topology
from kernels.collectives.tuning.place import table_path
from workers.deployment.child import RestartBudget
from workers.errors import GroupLost
from workers.ranks.watch import Limits

WITHIN_S = 5.0


def start(group):
    group.start()
    group.wait_loaded()


def fail_and_renew(place, **command):
    """A command that breaks; the verdict's words and how long the error took."""
    begin_s = time.monotonic()
    with pytest.raises((CollectiveError, MismatchedCall)) as caught:
        place.run(**command)
    took_s = time.monotonic() - begin_s
    place.group.renew(error=caught.value)
    return place.group.status()["rank_last_verdict"], took_s


def test_commands_are_carried_out_by_all(make_group):
    place = make_group()
    for value in range(20):
        assert place.run(value) == [2.0 * value + 1] * 4
    status = place.group.status()
    assert status["ranks"] == {"size": 2, "epoch": 0, "restarts_total": 0}
    place.wait("done", lambda: place.group.status()["rank_processes"][1]["commands"] == 20)
    assert status["rank_state"] == "running"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_follower_lost_while_idle_is_named_and_replaced(make_group, number):
    place = make_group()
    pid = place.pid()
    os.kill(pid, number)
    took_s = place.wait("the loss is seen", lambda: place.group.is_broken, WITHIN_S)
    assert took_s < WITHIN_S
    with pytest.raises(RankLost, match="epoch 0 is over: rank 1"):
        place.run()
    place.group.renew()
    verdict = place.group.status()["rank_last_verdict"]
    assert f"rank 1 (process {pid}) of epoch 0" in verdict
    assert ("died" if number == signal.SIGKILL else "stalled") in verdict
    assert "waiting for commands" in verdict
    assert place.run(3) == [7.0] * 4
    assert place.group.status()["ranks"] == {"size": 2, "epoch": 1, "restarts_total": 1}
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_follower_lost_in_a_step_is_named_and_replaced(make_group, number):
    place = make_group(log=None)
    place.run()
    subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -{number.value} {place.pid()}"])
    begin_s = time.monotonic()
    verdict, took_s = fail_and_renew(place, times=20, sleep_s={"0": 0.05, "1": 0.05})
    assert took_s < 0.3 + WITHIN_S
    assert "rank 1" in verdict
    assert "carrying out command 2, at exchange" in verdict
    if number == signal.SIGSTOP:
        assert "stalled" in verdict
        assert "expected 0.010 s, bound 2.0 s" in verdict
    assert place.run(5) == [11.0] * 4
    assert time.monotonic() - begin_s < 30


def test_a_slow_rank_within_its_bound_is_left_alone(make_group):
    place = make_group()
    assert place.run(sleep_s={"1": 1.2}) == [3.0] * 4
    # Five times the prediction, though far beyond the floor.
    assert place.run(sleep_s={"1": 2.6}, expected_s=0.8) == [3.0] * 4
    with place.group.window(10.0):
        assert place.run(sleep_s={"1": 2.6}, expected_s=0.01) == [3.0] * 4
    # Nothing predicted: five times what the warm-up took.
    assert place.run(sleep_s={"1": 2.6}, expected_s=None) == [3.0] * 4
    assert place.group.status()["ranks"]["epoch"] == 0


def test_a_rank_slower_than_its_bound_has_stalled(make_group):
    place = make_group()
    verdict, took_s = fail_and_renew(place, sleep_s={"1": 60})
    assert 1.9 < took_s < WITHIN_S
    assert "stalled" in verdict


def test_a_rank_with_another_shape_is_named_on_both_sides(make_group):
    place = make_group()
    with pytest.raises(MismatchedCall, match=r"rank \d calls all_reduce .*expected as rank"):
        place.run(lengths={"1": 7})
    place.group.renew(error=MismatchedCall("as above"))
    verdict = place.group.status()["rank_last_verdict"]
    assert "MismatchedCall" in verdict
    assert place.run(1) == [3.0] * 4


def test_the_rank_at_fault_is_named_among_three(make_group):
    place = make_group(num_ranks=3)
    pid = place.pid(2)
    os.kill(pid, signal.SIGSTOP)
    verdict, _ = fail_and_renew(place)
    assert verdict.startswith(f"rank 2 (process {pid})")
    assert place.run(1) == [6.0] * 4


def test_a_follower_that_cannot_load_ends_the_start_with_its_reason(make_group):
    place = make_group(start=False, refuses_at_epoch=0)
    with pytest.raises(GroupLost, match="ValueError: rank 1 has no weights"):
        start(place.group)


def test_too_many_losses_end_the_group(make_group):
    place = make_group(budget=RestartBudget(max_per_minute=1))
    fail_and_renew(place, sleep_s={"1": 60})
    os.kill(place.pid(), signal.SIGKILL)
    with pytest.raises(CollectiveError) as caught:
        place.run(times=100, sleep_s={"0": 0.02})
    begin_s = time.monotonic()
    with pytest.raises(GroupLost, match="lost too often, the last time: rank 1"):
        place.group.renew(error=caught.value)
    assert time.monotonic() - begin_s < WITHIN_S
    assert place.group.status()["rank_state"] == "lost"


def test_a_loss_while_the_group_is_founded_anew_costs_another_epoch(make_group):
    place = make_group(load_s=0.5)
    first = place.pid()
    os.kill(first, signal.SIGKILL)
    place.wait("the next epoch", lambda: place.group.status()["rank_processes"][1:] and
               place.group.status()["rank_processes"][1]["pid"] not in (0, first))  # fmt: skip
    os.kill(place.pid(), signal.SIGKILL)
    place.group.renew()
    assert place.run(1) == [3.0] * 4
    assert place.group.status()["ranks"]["epoch"] == 2


def test_a_corrupt_table_is_refused_by_name_and_the_seed_recorded(make_group, tmp_path, caplog):
    table = table_path(tmp_path, this_topology(), 2)
    table.parent.mkdir()
    table.write_text('{"schema": 1, "facts"')
    place = make_group(data_dir=str(tmp_path))
    assert place.run(1) == [3.0] * 4
    (refused,) = [d for d in place.group.ledger if d.what == "table of collectives"]
    assert refused.chosen == "seed constants"
    assert f"{table} is no table of collectives" in refused.reasons[0]
    assert str(table) in caplog.text


def test_a_leader_that_does_not_move_is_the_one_to_blame(make_group):
    heard = []
    place = make_group(on_leader_stalled=heard.append)
    with pytest.raises(CollectiveError):
        place.run(sleep_s={"0": 4.5})
    assert heard[0].rank == 0
    with pytest.raises(GroupLost, match="rank 0 cannot go on"):
        place.group.renew()


def test_closing_ends_the_followers(make_group):
    place = make_group()
    process = psutil.Process(place.pid())
    begin_s = time.monotonic()
    place.group.close()
    assert not process.is_running()
    assert time.monotonic() - begin_s < WITHIN_S


LEADER = """
import sys, time, json
from pathlib import Path
sys.path[:0] = [{here!r}, {root!r}]
from workers.ranks.founding import GroupSpec
from workers.ranks.group import RankGroup
command = (sys.executable, {fake!r})
group = RankGroup(GroupSpec(num_ranks=2, command=command, folder=Path({folder!r})))
group.start()
group.wait_loaded()
print(group.status()["rank_processes"][1]["pid"], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("is_stopped", [False, True])
def test_followers_end_with_their_leader(tmp_path, is_stopped):
    here = Path(__file__).parent
    source = LEADER.format(
        here=str(here), root=str(here.parents[2]), fake=str(here / "fake_rank.py"),
        folder=str(tmp_path),
    )  # fmt: skip
    leader = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    follower = psutil.Process(int(leader.stdout.readline()))
    if is_stopped:
        follower.suspend()
    leader.kill()
    leader.wait()
    deadline_s = time.monotonic() + WITHIN_S
    while follower.is_running() and follower.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s, "the follower outlived its leader"
        time.sleep(0.02)


def test_an_idle_follower_costs_nearly_nothing(make_group):
    place = make_group(limits=Limits())
    process = psutil.Process(place.pid())
    place.run()
    time.sleep(0.5)
    before = process.cpu_times()
    time.sleep(2.0)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.1
    assert place.run(1) == [3.0] * 4
