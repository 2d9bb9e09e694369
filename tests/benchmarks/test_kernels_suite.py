"""The kernels' suite and the GPU check, on a CPU: rows, wrong kernels, and no GPU."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.limits import Limits
from benchmarks.suites import kernels
from benchmarks.suites.kernel_cases import cases_for, parse_case
from benchmarks.suites.kernel_cases_gpu import GPU_CASES, TEN
from benchmarks.suites.kernel_tuning import tune
from benchmarks.timing import Effort, Stopwatch, median_ratio, spread
from kernels.hardware.traits import load_traits
from kernels.ops.registry import OPS, op_spec
from kernels.spec import Implementation, Tier
from kernels.tuned import TunedTable

ROOT = Path(__file__).resolve().parents[2]
TIMED = {
    "suite", "row", "ours", "unit", "p20", "p80", "peer", "peer_version", "vs_peer", "vs_reference",
    "limit", "of_limit", "error", "op", "case", "implementation", "tier", "bound",
}  # fmt: skip


@pytest.fixture
def bench():
    return kernels.Bench(
        device=torch.device("cpu"),
        traits=load_traits("avx512"),
        watch=Stopwatch(torch.device("cpu")),
        limits=Limits(copy_bytes_s=1e10, read_bytes_s=1e10, gemm_flop_s={"fp32": 1e11}),
        effort=Effort(budget_s=0.01, min_rounds=3, max_rounds=3),
    )


def test_quick_rows_of_two_ops_have_the_declared_keys(monkeypatch, bench, capsys):
    monkeypatch.setattr(kernels, "make_bench", lambda device, effort: bench)
    rows = kernels.run(quick=True, ops=("rms_norm", "swiglu"))
    timed = [row for row in rows if "op" in row]
    assert [row["op"] for row in timed] == ["rms_norm", "swiglu"]
    for row in timed:
        assert row.keys() >= TIMED
        assert row["p20"] <= row["ours"] <= row["p80"]
        assert row["error"] <= 2
        assert row["peers"]["liger_kernel"].startswith("n/a")
    assert all(row["ours"] > 0 for row in rows)
    assert "python -m benchmarks kernels --quick" in capsys.readouterr().out


def wrong(x_TD, weight_D, residual_TD=None, *, eps, quant="none"):
    return x_TD * weight_D, None, None


def broken(*args, **options):
    raise RuntimeError("does not launch")


@pytest.mark.parametrize(("name", "reason"), [("wrong", "times torch's"), ("broken", "launch")])
def test_a_wrong_implementation_is_a_row_with_its_error_and_no_time(bench, name, reason):
    spec = op_spec("rms_norm")
    injected = Implementation(name=name, tier=Tier.FUSED, entry=f"{__name__}:{name}")
    spec = replace(spec, implementations=(injected, *spec.implementations))
    rows = list(kernels.rows_of(spec, "", parse_case("fp32 T=4 D=64"), bench))
    by_name = {row["implementation"]: row for row in rows}
    assert reason in by_name[name]["failure"]
    assert "ours" not in by_name[name]
    assert by_name["cpu"]["vs_peer"] > 0


def test_an_op_without_its_own_cpu_code_is_listed_as_generic(bench):
    rows = list(kernels.rows_of(op_spec("moe_router"), "", op_spec("moe_router").cases[0], bench))
    assert [(row["implementation"], row["tier"]) for row in rows] == [("torch", "generic")]
    assert rows[0]["peer"] == "n/a"
    assert "vs_peer" not in rows[0]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_op_has_cases_and_they_are_cases_of_it(kind):
    cases = cases_for(kind)
    assert set(cases) == set(OPS)
    for op, of_op in cases.items():
        names = set(op_spec(op).cases[0].sizes)
        for _, case in of_op:
            assert set(case.sizes) == names
            assert op_spec(op).read_write_bytes(case) > 0
    assert set(GPU_CASES) <= set(OPS)
    assert set(TEN) <= set(OPS)


def test_percentiles_and_ratios():
    found = spread([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (found.p20, found.p50, found.p80) == (pytest.approx(1.8), 3.0, pytest.approx(4.2))
    assert median_ratio([2.0, 2.0, 9.0], [1.0, 2.0, 3.0]) == 2.0


def test_the_limit_is_the_larger_of_traffic_and_work(bench):
    spec = op_spec("gemm")
    thin, thick = parse_case("fp32 M=1 N=512 K=512"), parse_case("fp32 M=512 N=512 K=512")
    assert bench.limits.of(spec, thin).bound == "memory"
    limit = bench.limits.of(spec, thick)
    assert limit.bound == "fp32 product"
    assert limit.seconds == pytest.approx(2 * 512**3 / 1e11)


def test_rows_become_a_table_of_what_beat_the_default():
    def row(name, ours, tier="fused"):
        case = "fp32 T=4 D=64"
        return {"op": "rms_norm", "case": case, "implementation": name, "ours": ours, "tier": tier}

    rows = [row("triton", 10.0), row("slow", 12.0), row("fast", 5.0), row("torch", 1.0, "generic")]
    table, rejections = tune(TunedTable(family="sm_90"), rows)
    assert [(e.choice, e.ratio) for e in table.entries] == [("fast", 2.0)]
    assert [r.candidate for r in rejections] == ["slow", "torch"]


def shell(*arguments, **environment):
    command = ["bash", str(ROOT / "benchmarks" / "gpu_check.sh"), *arguments]
    everything = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment
    return subprocess.run(command, capture_output=True, text=True, env=everything, check=False)


def test_without_a_gpu_the_check_says_so_and_exits_2(tmp_path):
    finished = shell(PYTHON=sys.executable, OUT=str(tmp_path))
    assert finished.returncode == 2
    assert finished.stdout.strip() == gpu_check.NO_GPU
    assert list(tmp_path.iterdir()) == []


def test_without_its_libraries_the_check_names_them_and_exits_2(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" -I -S "$@"\n')
    bare.chmod(0o755)
    finished = shell(PYTHON=str(bare))
    assert finished.returncode == 2
    assert "torch triton pytest" in finished.stdout


def test_a_child_checks_and_a_dead_one_is_a_failure(monkeypatch):
    deadline = time.monotonic() + 60
    rows = gpu_check.run_task(
        gpu_check.Task(mode="check", ops=("int8_wire",), device="cpu"), deadline
    )
    kinds = {(row["check"], row["passed"]) for row in rows}
    assert kinds == {("odd", True), ("real", True)}
    assert gpu_check.summary(rows)["int8_wire"]["passed"]
    monkeypatch.setattr(gpu_check, "CHILD", "benchmarks.no_such_module")
    rows = gpu_check.run_task(gpu_check.Task(mode="check", ops=("gemm",)), deadline)
    assert len(rows) == 1
    assert "no_such_module" in rows[0]["failure"]
    assert not gpu_check.show(rows)


def test_processes_share_the_devices_memory(monkeypatch):
    monkeypatch.setattr(gpu_check.os, "cpu_count", lambda: 16)
    assert [gpu_check.num_workers(n << 30) for n in (8, 24, 141)] == [1, 2, 6]
    monkeypatch.setattr(gpu_check.os, "cpu_count", lambda: 4)
    assert gpu_check.num_workers(141 << 30) == 4


def test_the_end_of_a_run_knows_the_better_limits(bench):
    quiet = Limits(copy_bytes_s=2e10, read_bytes_s=5e9, gemm_flop_s={"bf16": 1e12})
    best = bench.limits.better(quiet)
    assert (best.copy_bytes_s, best.read_bytes_s) == (2e10, 1e10)
    assert best.gemm_flop_s == {"fp32": 1e11, "bf16": 1e12}
    spec, case = op_spec("swiglu"), parse_case("fp32 T=4 I=64")
    rows = list(kernels.rows_of(spec, "", case, bench))
    before = rows[0]["limit"]
    kernels.relimited(rows, best)
    assert rows[0]["limit"] == pytest.approx(before / 2)
    assert rows[0]["of_limit"] == pytest.approx(rows[0]["limit"] / rows[0]["ours"])


FAULTY_CHILD = """
import json, os, sys
device, mode, start, op = sys.argv[1:]
for index in range(int(start), 5):
    print(json.dumps({"begins": True, "op": op, "check": "odd", "case": index}), flush=True)
    if index == 1:
        os._exit(139)
    print(json.dumps({"passed": index != 3, "error": 1.0} | (
        {"failure": "illegal address"} if index == 3 else {})), flush=True)
    if index == 3:
        sys.exit(3)
"""


def test_cases_behind_a_faulty_one_are_still_checked(tmp_path, monkeypatch):
    (tmp_path / "faulty_child.py").write_text(FAULTY_CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu_check, "CHILD", "faulty_child")
    task = gpu_check.Task(mode="check", ops=("gemm",))
    rows = gpu_check.run_task(task, time.monotonic() + 60)
    assert [row["case"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["passed"] for row in rows] == [True, False, True, False, True]
    assert "ended with 139" in rows[1]["failure"]
    found = gpu_check.summary(rows)["gemm"]
    assert (found["passed"], found["checks"]) == (False, 5)
    saved = gpu_check.save(tmp_path / "out", {"device": "NVIDIA H200 (SXM)"}, rows, 1.0)
    assert saved.name == "gpu_check_nvidia-h200-sxm.json"


def test_nothing_begins_after_the_time_box():
    task = gpu_check.Task(mode="check", ops=("gemm",), device="cpu")
    assert gpu_check.run_task(task, time.monotonic()) == []
