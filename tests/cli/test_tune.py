"""`lanewise tune`: measures within its limit, tells fresh from drifted, and ends with its code."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from kernels.collectives.topology import this_topology
from kernels.collectives.tuning.place import find_table, table_path
from kernels.collectives.tuning.table import Times, save
from kernels.collectives.tuning.tune import TuneSettings, tune
from service.commands import child
from workers.planning.tune import main

INSTANT = Times(least=1e-3, p20=1e-3, p50=1e-3, p80=1e-3, p95=1e-3)


@pytest.fixture(scope="module")
def measured():
    """One all-reduce, measured on this machine."""
    settings = TuneSettings(
        num_ranks=2,
        num_rounds=4,
        operations=("all_reduce",),
        contracts=("exact",),
        sizes_bytes=(8192,),
    )
    return tune(settings, this_topology())


def test_the_command_hands_its_options_on(monkeypatch):
    from service.cli import main as lanewise

    seen = []

    def run(words, **_):
        seen.append(words)
        return type("Done", (), {"returncode": 3})()

    monkeypatch.setattr(child.subprocess, "run", run)
    done = CliRunner().invoke(lanewise, ["tune", "--ranks", "4", "--explain", "--strict"])
    assert done.exit_code == 3
    assert seen[0][2:] == ["workers", "tune", "--ranks", "4", "--explain", "--strict"]


@pytest.mark.parametrize(
    "words", [["--ranks", "1"], ["--limit", "0"], ["--check", "--again"], ["--what"]]
)
def test_wrong_usage_ends_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="this machine has devices")
def test_devices_that_are_not_there_are_not_measured(tmp_path, capsys):
    assert main(["--device", "cuda", "--data", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "--ranks 2: each takes a device of its own, torch sees" in said
    assert "leave --device out" in said


def test_checking_an_empty_folder_says_what_to_do(tmp_path, capsys):
    assert main(["--check", "--data", str(tmp_path)]) == 0
    assert main(["--check", "--strict", "--data", str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert "absent: ranks choose by seed constants until you measure with `lanewise tune`" in (
        said.out
    )
    assert "refused by --strict" in said.err
    assert not list(tmp_path.iterdir())


def test_a_limit_that_is_too_short_ends_with_1_and_leaves_no_table(tmp_path, capsys):
    assert main(["--limit", "1", "--data", str(tmp_path)]) == 1
    assert "was measured within 1.0 s" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_a_drifted_table_is_told_and_kept_as_it_is(measured, tmp_path, capsys):
    here = this_topology()
    entries = tuple(replace(entry, us=INSTANT) for entry in measured.entries)
    path = save(replace(measured, entries=entries), table_path(tmp_path, here, 2))
    before = path.read_bytes()
    assert main(["--strict", "--data", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert "drifted: " in said
    assert "lanewise tune --again" in said
    assert path.read_bytes() == before


def test_json_holds_the_table_and_nothing_else_is_printed(measured, tmp_path, capsys):
    here = this_topology()
    save(measured, table_path(tmp_path, here, 2))
    assert main(["--check", "--json", "--data", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["after"]["state"] == "fresh"
    assert told["table"]["entries"][0]["why"]
    assert told["rechecked"][0]["now_us"] > 0


def test_what_was_cut_short_is_completed_and_what_is_there_is_kept(measured):
    kept = replace(measured.entries[0], why="measured before")
    begun = replace(measured, entries=(kept,), is_complete=False)
    settings = TuneSettings(
        num_ranks=2,
        num_rounds=4,
        operations=("all_reduce",),
        contracts=("exact",),
        sizes_bytes=(8192, 65536),
    )
    seen = []
    done = tune(settings, this_topology(), begun, lambda count, of: seen.append((count, of)))
    assert done.is_complete
    assert done.entries[0] == kept
    assert [entry.bytes for entry in done.entries] == [8192, 65536]
    assert seen[-1] == (2, 2)
    assert done.model == begun.model


@pytest.mark.slow
def test_a_whole_run_leaves_a_table_that_explains_itself(tmp_path, capsys):
    assert main(["--data", str(tmp_path), "--explain", "--limit", "120"]) == 0
    said = capsys.readouterr().out
    for part in ("choices", "candidates", "links, fitted", "guards", "device collectives, nccl"):
        assert part in said
    assert find_table(tmp_path, this_topology(), 2).state == "fresh"
