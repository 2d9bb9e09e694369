"""Engines in processes of their own: what they answer, and how they fail."""

import sys
import time
from pathlib import Path

import pytest

from benchmarks.llm.contest import Contest, run_rounds
from benchmarks.llm.contestants import (
    OURS,
    UNPACKED_STAMP,
    Contestant,
    Setting,
    origin_of,
    our_contestant,
    peer_contestants,
)
from benchmarks.llm.extras import note_loads_and_memory
from benchmarks.llm.measurements import Measurement, Metric
from benchmarks.llm.process import Command, EngineAbsent, EngineFailed, EngineProcess
from benchmarks.llm.rows import KEYS, Stamp, contest_rows
from benchmarks.llm.statistics import decode_tok_s
from llm_engine.weights.resolve import BUNDLED_NAME

STAMP = Stamp(machine="a CPU, 1 threads", commit="abc", plan_hash="f00")
REQUESTS = [([1, 2, 3, 4], 3, 0.0), ([5, 6, 7, 8], 3, 0.0)]


def command(form):
    return Command(
        python=sys.executable,
        module="tests.benchmarks.llm.scripted_engine",
        options={"form": form, "threads": 1},
    )


def contestant(name, form, tmp_path, **more):
    log = tmp_path / f"{name}{form}.log"
    return Contestant(name=name, form=form, command=command(form or "works"), log=log, **more)


@pytest.fixture
def decode():
    metric = Metric(row="decode 2", unit="tok/s", higher_is_better=True, of=decode_tok_s)
    return Measurement(name="decode 2", requests=lambda _: REQUESTS, metrics=(metric,))


def test_an_engine_answers_in_order_whatever_it_prints(tmp_path):
    process = EngineProcess(command("works"), tmp_path / "log")
    try:
        assert process.ask("load", timeout_s=30)["version"] == "1.0"
        first, second = process.ask("run", timeout_s=30, requests=REQUESTS)
        assert (first["tokens"], second["tokens"]) == ([4, 3, 2], [8, 7, 6])
        assert first["times"] == sorted(first["times"])
        one, two = process.ask("run", timeout_s=30, requests=REQUESTS, window=1)
        assert two["sent"] >= one["times"][-1]
        assert process.ask("memory", timeout_s=30)["peak_bytes"] > 1 << 20
    finally:
        process.stop()
    assert "noise" in (tmp_path / "log").read_text()


def test_requests_wait_for_their_arrival(tmp_path):
    engine = contestant(OURS, "", tmp_path)
    late = [([1, 2], 1, 0.0), ([3, 4], 1, 0.2)]
    _, answer = engine.ask("run", timeout_s=30, requests=late)
    engine.stop()
    assert answer["times"][0] >= 0.2


@pytest.mark.parametrize(
    ("form", "message"),
    [("dies", "exit 7"), ("raises", "ValueError: no such token"), ("hangs", "longer than")],
)
def test_a_failing_engine_is_named_and_ended(tmp_path, form, message):
    process = EngineProcess(command(form), tmp_path / "log")
    process.ask("load", timeout_s=30)
    begin = time.monotonic()
    with pytest.raises(EngineFailed, match=message):
        process.ask("run", timeout_s=1.0, requests=REQUESTS)
    assert time.monotonic() - begin < 20
    assert not Path(f"/proc/{process.pid}").exists()


def test_an_absent_engine_says_why(tmp_path):
    process = EngineProcess(command("absent"), tmp_path / "log")
    with pytest.raises(EngineAbsent, match="needs another CPU"):
        process.ask("load", timeout_s=30)


def test_a_contest_outlives_a_crashing_and_an_absent_peer(tmp_path, decode, capsys):
    contest = Contest(
        contestants=[
            contestant(OURS, "", tmp_path),
            contestant("steady", "", tmp_path),
            contestant("crashing", "dies", tmp_path),
            contestant("missing", "absent", tmp_path),
        ]
    )
    saves = []
    contest.start()
    rounds = run_rounds(
        contest, lambda _: [decode], max_rounds=2, deadline=time.monotonic() + 60,
        saved=lambda: saves.append(len(contest_rows(contest, STAMP, None))),
    )  # fmt: skip
    note_loads_and_memory(contest)
    contest.stop()
    assert (rounds, saves) == (2, [1, 1])
    rows = {row["row"]: row for row in contest_rows(contest, STAMP, None)}
    assert rows.keys() == {"decode 2", "load time", "peak memory"}
    row = rows["decode 2"]
    assert row.keys() >= set(KEYS)
    assert row["rounds"] == 2
    assert row["p20"] <= row["ours"] <= row["p80"]
    assert row["peer"] == "steady"
    assert row["vs_peer"] > 0
    assert "exit 7" in row["peers"]["crashing"]["absent"]
    assert row["peers"]["missing"]["absent"] == "n/a: needs another CPU"
    assert row["agreement"] == {"steady": 1.0}
    assert (row["plan_hash"], row["machine"], row["commit"]) == ("f00", "a CPU, 1 threads", "abc")
    assert "crashing" in capsys.readouterr().err


def test_our_own_failure_is_a_row_with_its_error(tmp_path, decode):
    contest = Contest(contestants=[contestant(OURS, "raises", tmp_path)])
    contest.metrics["decode 2"] = decode.metrics[0]
    contest.start()
    contest.measure(decode, 0)
    contest.stop()
    [row] = contest_rows(contest, STAMP, None)
    assert row["ours"] is None
    assert "no such token" in row["error"]
    assert row["peer"] == "n/a"


def test_peers_that_are_not_installed_are_absent_with_the_way_to_get_them(tmp_path):
    setting = Setting(
        model="m", gguf=tmp_path / "m.gguf", threads=1, logs=tmp_path, peers_folder=tmp_path
    )
    peers = peer_contestants(setting, ("llama.cpp", "vllm"))
    assert all("benchmarks/peers/setup_" in peer.absent for peer in peers)
    with pytest.raises(EngineAbsent, match="not installed"):
        peers[0].start()


def test_vllm_is_absent_while_its_weights_are_another_model(tmp_path):
    gguf, folder = tmp_path / "m.gguf", tmp_path / "vllm_cpu"
    gguf.write_bytes(b"1234")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "weights").mkdir()
    setting = Setting(model="m", gguf=gguf, threads=1, logs=tmp_path, peers_folder=tmp_path)
    [vllm] = peer_contestants(setting, ("vllm",))
    assert "holds nothing, not" in vllm.absent
    (folder / "weights" / UNPACKED_STAMP).write_text(origin_of(gguf))
    [vllm] = peer_contestants(setting, ("vllm",))
    assert vllm.absent == ""


def test_the_setup_scripts_that_absent_peers_name_exist(tmp_path):
    root = Path(__file__).resolve().parents[3]
    for name in ("llama_cpp", "vllm_cpu"):
        assert (root / f"benchmarks/peers/setup_{name}.sh").stat().st_mode & 0o100


def test_our_engine_serves_prompts_and_texts(tmp_path):
    setting = Setting(model=BUNDLED_NAME, gguf=None, threads=1, logs=tmp_path)
    engine = our_contestant(setting)
    try:
        requests = [([504, 3575, 282, 4649, 314], 4, 0.0), ("Hello", 3, 0.0)]
        answers = engine.ask("run", timeout_s=120, requests=requests)
        assert [len(answer["tokens"]) for answer in answers] == [4, 3]
        assert engine.facts["dtype"] in ("float32", "bfloat16")
        steady = engine.ask(
            "steady", timeout_s=120, requests=[[[i + 9], 1, 0.0] for i in range(20)], window=4,
            head=10,
        )  # fmt: skip
        assert len(steady["rss_bytes"]) == 2
    finally:
        engine.stop()
