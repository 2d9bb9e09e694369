"""Which table holds for this machine: the right one is used, every other one is named."""

import shutil
from dataclasses import replace

import pytest

from kernels.collectives.choice import SEED
from kernels.collectives.costs import SEEDS
from kernels.collectives.topology import this_topology
from kernels.collectives.tuning.place import find_table, knowledge_for_this_machine, table_path
from kernels.collectives.tuning.probe import verdict
from kernels.collectives.tuning.recheck import recheck
from kernels.collectives.tuning.table import Entry, Table, Times, save
from kernels.ledger import Ledger

HERE = this_topology(readers=())
AT_ONCE = Times(least=1e-3, p20=1e-3, p50=1e-3, p80=1e-3, p95=1e-3)
NEVER = Times(least=1e9, p20=1e9, p50=1e9, p80=1e9, p95=1e9)


def entry(times, size_bytes):
    return Entry(
        op="all_reduce",
        n=2,
        dtype="bfloat16",
        contract="exact",
        ctx="eager",
        concurrent="idle",
        bytes=size_bytes,
        choice="shm/one_shot",
        seed="shm/one_shot",
        us=times,
        seed_us=times,
        num_rounds=9,
        is_checked=True,
    )


def table(here=HERE, **changes):
    made = Table(
        facts=here.facts(),
        model=dict(SEEDS),
        residual={},
        entries=(entry(AT_ONCE, 8192), entry(NEVER, 65536)),
        rejected={},
        made="2026-01-01T00:00:00+00:00",
        duration_s=1.0,
    )
    return replace(made, **changes)


def test_this_machines_table_is_found_and_used(tmp_path):
    path = save(table(), table_path(tmp_path, HERE, 2))
    found = find_table(tmp_path, HERE, 2)
    assert (found.state, found.path) == ("fresh", path)
    ledger = Ledger()
    knowledge = knowledge_for_this_machine(tmp_path, 2, ledger=ledger, here=HERE)
    assert knowledge == table().knowledge()
    assert next(iter(ledger)).source == "tuned"


def test_tensors_of_devices_have_a_table_of_their_own(tmp_path):
    own, of_devices = table_path(tmp_path, HERE, 2), table_path(tmp_path, HERE, 2, "cuda")
    assert of_devices.name == own.name.replace("-ranks.json", "-ranks-cuda.json")
    save(table(), own)
    assert find_table(tmp_path, HERE, 2).state == "fresh"
    assert find_table(tmp_path, HERE, 2, "cuda").state == "absent"
    save(table(made="2026-02-02T00:00:00+00:00"), of_devices)
    kept = knowledge_for_this_machine(tmp_path, 2, here=HERE, device="cuda")
    assert "measured 2026-02-02" in kept.evidence


def test_without_a_table_the_seed_serves_and_says_what_to_do(tmp_path):
    ledger = Ledger()
    assert knowledge_for_this_machine(tmp_path, 2, ledger=ledger, here=HERE) == SEED
    decision = next(iter(ledger))
    assert decision.chosen == "seed constants"
    assert "absent" in decision.rejected[0].reasons[0]
    assert decision.remedy == "measure with `lanewise tune`"


@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_a_damaged_or_foreign_file_is_named_and_never_used(tmp_path, damage):
    path = table_path(tmp_path, HERE, 2)
    if damage == "cut":
        save(table(), path)
        path.write_text(path.read_text()[:100])
    else:
        save(table(replace(HERE, num_cores=HERE.num_cores + 1)), path)
    ledger = Ledger()
    assert knowledge_for_this_machine(tmp_path, 2, ledger=ledger, here=HERE) == SEED
    decision = next(iter(ledger))
    assert decision.rejected[0].candidate == str(path)
    assert "unreadable" in decision.rejected[0].reasons[0]
    if damage == "foreign":
        assert f"num_cores: measured with {HERE.num_cores + 1}" in decision.reasons[0]


def test_a_machine_that_changed_makes_its_table_stale(tmp_path):
    before = replace(HERE, p2p="yes")
    save(table(before), table_path(tmp_path, before, 2))
    found = find_table(tmp_path, HERE, 2)
    assert found.state == "stale"
    assert "p2p: measured with yes" in found.reason
    assert found.table is None
    assert find_table(tmp_path, HERE, 4).state == "absent"


def test_a_table_under_another_name_is_not_taken(tmp_path):
    path = save(table(), table_path(tmp_path, HERE, 2))
    shutil.move(path, path.with_name("other-2-ranks.json"))
    found = find_table(tmp_path, HERE, 2)
    assert (found.state, found.remedy) == ("stale", f"rename it to {path.name}")


def test_a_table_that_was_cut_short_serves_and_asks_to_be_completed(tmp_path):
    save(table(is_complete=False), table_path(tmp_path, HERE, 2))
    found = find_table(tmp_path, HERE, 2)
    assert found.state == "incomplete"
    assert found.table is not None
    assert "after 2 cases" in found.reason


def test_a_choice_that_takes_longer_than_its_table_says_has_drifted():
    first, second = recheck(table(), 2, limit_s=60)
    assert first.has_drifted
    assert not second.has_drifted
    assert first.now_us > 1


def test_a_recheck_keeps_its_time():
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        recheck(table(), 2, limit_s=0.05)


def test_the_verdict_says_what_decided():
    fast = Times(least=80, p20=85, p50=90, p80=95, p95=100)
    slow = Times(least=180, p20=185, p50=190, p80=195, p95=200)
    assert verdict({"a": slow, "b": fast}, "a") == ("b", "2.11x of a, spreads apart")
    assert verdict({"a": fast, "b": slow}, "a")[0] == "a"
    near = replace(fast, p20=84, p50=89)
    name, why = verdict({"a": fast, "b": near}, "a")
    assert name == "a"
    assert "gains 1.1% at the median, needs 5%" in why
    assert "its p80 95 us overlaps the seed's p20 85 us" in why
