"""The table: whole or not at all, for one machine, and naming what differs."""

from dataclasses import replace

import pytest

from kernels.collectives.choice import Question, choose
from kernels.collectives.costs import SEEDS
from kernels.collectives.group import Group
from kernels.collectives.topology import this_topology, topology_of
from kernels.collectives.tuning.table import Entry, Table, Times, load, save
from kernels.hardware.machine import load_machine
from kernels.table_file import TableFileError

HERE = topology_of(load_machine("8x-l40s"))
FAST = Times(least=80, p20=85, p50=90, p80=95, p95=100)
SLOW = Times(least=180, p20=185, p50=190, p80=195, p95=200)
ENTRY = Entry(
    op="all_reduce",
    n=2,
    dtype="bfloat16",
    contract="exact",
    ctx="eager",
    concurrent="idle",
    bytes=65536,
    choice="shm/pairwise",
    seed="shm/two_shot",
    us=FAST,
    seed_us=SLOW,
    num_rounds=9,
    is_checked=True,
)
TABLE = Table(
    facts=HERE.facts(),
    model=dict(SEEDS),
    residual={"shm": 0.1, "gloo": 0.2},
    entries=(ENTRY,),
    rejected={"gloo/chain": "RankStalled"},
    made="2026-01-01T00:00:00+00:00",
    duration_s=1.5,
)
GROUP = Group(rank=0, size=2, rendezvous="file:///nowhere")


def ask(size_bytes):
    return Question(
        operation="all_reduce",
        contract="exact",
        size_bytes=size_bytes,
        dtype="bfloat16",
        num_ranks=2,
    )


def test_a_table_comes_back_as_it_was_written(tmp_path):
    path = save(TABLE, tmp_path / "tables" / "two.json")
    assert load(path, HERE, 2) == TABLE
    assert [file.name for file in path.parent.iterdir()] == ["two.json"]


def test_a_measured_choice_is_taken_in_its_bucket_and_says_so(tmp_path):
    knowledge = load(save(TABLE, tmp_path / "t.json"), HERE, 2).knowledge()
    chosen, decision = choose(ask(70_000), GROUP, knowledge=knowledge)
    assert chosen.name == "shm/pairwise"
    assert decision.source == "tuned"
    assert "measured 2026-01-01" in decision.evidence
    assert choose(ask(200_000), GROUP, knowledge=knowledge)[1].source == "default"
    assert choose(ask(70_000), GROUP, asked="gloo/chain", knowledge=knowledge)[1].source == (
        "explicit"
    )


def test_another_machine_is_named_by_field_and_both_values(tmp_path):
    path = save(TABLE, tmp_path / "t.json")
    slower = replace(HERE, links=("pcie-gen4-x8", *HERE.links[1:]), p2p="no")
    with pytest.raises(TableFileError, match=r"links: measured with .*x16.*here is .*x8") as caught:
        load(path, slower, 2)
    assert "p2p: measured with yes, here is no" in str(caught.value)
    with pytest.raises(TableFileError, match="measured with \\[2\\] ranks, here are 4"):
        load(path, HERE, 4)


@pytest.mark.parametrize("damage", ["cut", "edited"])
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    path = save(TABLE, tmp_path / "t.json")
    text = path.read_text()
    cut, edited = text[: len(text) // 2], text.replace('"p2p": "yes"', '"p2p": "no"')
    assert edited != text
    path.write_text(cut if damage == "cut" else edited)
    with pytest.raises(TableFileError, match=r"t\.json.*`lanewise tune`"):
        load(path, HERE, 2)


def test_a_choice_needs_a_clear_gain():
    assert not FAST.doubts(SLOW)
    assert SLOW.doubts(FAST)
    assert replace(FAST, p80=186).doubts(SLOW)
    assert replace(FAST, p95=500).doubts(SLOW)
    near = Times(least=180, p20=181, p50=182, p80=183, p95=184)
    assert near.doubts(SLOW)


def test_facts_hold_no_rates_and_no_serial_numbers():
    facts = this_topology(readers=()).facts()
    assert {"devices", "links", "p2p", "islands", "versions", "layer_version"} <= set(facts)
    assert not [name for name in facts if name.endswith("_bytes_s")]
    assert this_topology(readers=()).fingerprint == this_topology(readers=()).fingerprint
    other = replace(HERE, hop_bytes_s=1.0, source="elsewhere")
    assert other.fingerprint == HERE.fingerprint
    assert replace(HERE, num_cores=3).fingerprint != HERE.fingerprint
