"""Every kernel compiled on this GPU and checked, ten of them timed, then the language engine.

Each op runs in a process of its own, several side by side: a kernel that faults spoils the GPU
context of its process, and no other's. Such a process is started anew behind the faulty case. Run
through `benchmarks/gpu_check.sh`.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suites.kernel_cases_gpu import TEN
from benchmarks.suites.kernel_check import CONTEXT_LOST
from kernels.ops.registry import OPS

Row = dict[str, Any]

CHILD = "benchmarks.suites.kernel_check"
ENGINE_CHECK = "benchmarks.engine_check"
ENGINE_S = 150.0
NO_GPU = "no GPU: torch sees none on this machine, so there is nothing to check here"
CHECK_SHARE = 0.62  # of the time; the rest is for timing
CASE_TIMEOUT_S = 90.0
TIME_IS_UP = "time is up"
# Processes side by side, as many as the device's memory holds at this much each.
MOST_WORKERS = 6
WORKER_BYTES = 10 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a child does, "check" or "time", for some ops on a device."""

    mode: str
    ops: tuple[str, ...]
    device: str = "cuda:0"


def run_task(task: Task, deadline: float) -> list[Row]:
    """Rows of a task; a child that dies is recorded and followed by another."""
    rows: list[Row] = []
    finished = False
    while not finished and time.monotonic() < deadline:
        found, finished = _child(task, len(rows), deadline)
        rows += found
    return rows


def _child(task: Task, start: int, deadline: float) -> tuple[list[Row], bool]:
    """Rows of one process from case `start` on, and whether no other need follow it."""
    command = [sys.executable, "-m", CHILD, task.device, task.mode, str(start), *task.ops]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.append(_stderr(child)), daemon=True)
    reader.start()
    threading.Thread(target=_pump, args=(child, lines), daemon=True).start()
    rows, current, why = _listen(lines, deadline)
    if why:
        child.kill()
    code = child.wait()
    reader.join()
    if why == TIME_IS_UP or (code == 0 and not why):
        return rows, True
    if code == CONTEXT_LOST:
        return rows, False
    failure = why or f"process ended with {code}: {errors[0][-400:]}"
    head = current or {"op": task.ops[0], "check": "start"}
    return [*rows, head | {"passed": False, "failure": failure}], not current


def _listen(lines: queue.Queue[str | None], deadline: float) -> tuple[list[Row], Row, str]:
    """Finished rows, the case in progress, and why to wait no longer ("" at the child's end)."""
    rows: list[Row] = []
    current: Row = {}
    while True:
        patience_s = min(CASE_TIMEOUT_S, deadline - time.monotonic())
        try:
            line = lines.get(timeout=max(patience_s, 0.1))
        except queue.Empty:
            is_over = time.monotonic() >= deadline
            return rows, current, TIME_IS_UP if is_over else f"no answer in {CASE_TIMEOUT_S:g} s"
        if line is None:
            return rows, current, ""
        message = json.loads(line)
        if message.pop("begins", False):
            current = message
        else:
            rows.append(current | message)
            current = {}


def _pump(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            lines.put(line)
    lines.put(None)


def _stderr(child: subprocess.Popen[str]) -> str:
    assert child.stderr is not None
    return child.stderr.read()


def num_workers(memory_bytes: int) -> int:
    """How many processes check side by side."""
    return max(1, min(MOST_WORKERS, os.cpu_count() or 1, memory_bytes // WORKER_BYTES))


def check_all(seconds: float, workers: int) -> list[Row]:
    """Checks of all ops side by side, then times one by one: a device times one thing at once."""
    start = time.monotonic()
    order = [*TEN, *(op for op in OPS if op not in TEN)]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        tasks = [Task(mode="check", ops=(op,)) for op in order]
        deadline = start + CHECK_SHARE * seconds
        rows = [row for found in pool.map(lambda t: run_task(t, deadline), tasks) for row in found]
    return rows + run_task(Task(mode="time", ops=TEN), start + seconds)


def check_engine(seconds: float) -> list[Row]:
    """Rows of `benchmarks.engine_check`; one that says why where it ended early."""
    command = [sys.executable, "-m", ENGINE_CHECK, "--seconds", str(seconds / 2)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        out, why = done.stdout, f"ended with {done.returncode}: {done.stderr[-400:]}"
        is_whole = done.returncode == 0
    except subprocess.TimeoutExpired as error:
        out, why, is_whole = (error.stdout or b"").decode(), TIME_IS_UP, False
    rows: list[Row] = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return rows if is_whole else [*rows, {"op": "engine", "passed": False, "failure": why}]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """By op: right or wrong, checks passed, worst error ratio, the first failure."""
    result: dict[str, Any] = {}
    for op in (*OPS, "engine"):
        checks = [row for row in rows if row.get("op") == op and row.get("check") != "time"]
        done = [row for row in checks if "passed" in row]
        failures = [row for row in rows if row.get("op") == op and row.get("failure")]
        errors = [row["error"] for row in done if row.get("error") is not None]
        result[op] = {
            "passed": bool(done) and not failures,
            "checks": len(done),
            "worst_error_ratio": max(errors, default=None),
            "failure": failures[0]["failure"] if failures else "" if done else "not checked",
        }
    return result


def machine_facts() -> dict[str, str]:
    """The device, its driver, and the versions that ran."""
    import torch
    import triton

    from kernels.runtime import device_traits

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = f"hip {torch.version.hip}" if torch.version.hip else "unknown"
    return {
        "device": torch.cuda.get_device_name(0),
        "family": device_traits("cuda", 0).name,
        "driver": driver.splitlines()[0] if driver else "unknown",
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def save(out: Path, facts: dict[str, str], rows: Sequence[Row], seconds: float) -> Path:
    """Write `gpu_check_<device>.json`.

    Returns: the path written.
    """
    name = re.sub(r"[^a-z0-9]+", "-", facts["device"].lower()).strip("-")
    document = {
        "machine": facts,
        "seconds": round(seconds, 1),
        "kernels": summary(rows),
        "rows": list(rows),
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"gpu_check_{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def show(rows: Sequence[Row]) -> bool:
    """Print a line an op and a line a time; returns whether every kernel was checked and right."""
    kernels = summary(rows)
    for op, found in kernels.items():
        mark = "ok    " if found["passed"] else "WRONG " if found["checks"] else "UNSEEN"
        worst = found["worst_error_ratio"]
        error = "" if worst is None else f"worst error {worst:.2f} of torch's"
        print(f"{mark} {op:18} {found['checks']:3} checks  {error}  {found['failure']}")
    for row in rows:
        if "tokens_s" in row:
            of_limit = f"{row['of_limit']:6.1%} of the read limit" if "of_limit" in row else ""
            how = f"{row['time']:10} graphs {row['graphs']:4}"
            print(f"engine {how} {row['tokens_s']:10.1f} tok/s  {of_limit}")
        if "ours" in row:
            shown = f"{row['ours']:10.1f} µs  {row['of_limit']:6.1%} of {row['bound']}"
            peer = f"{row.get('vs_peer') or float('nan'):.2f} times {row['peer']}"
            print(f"{row['op']:18} {row['model']:34} {shown:34} {peer}")
    return all(found["passed"] for found in kernels.values())


def main() -> int:
    """The exit code, see `gpu_check.sh`."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu_check.sh", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--seconds", type=float, default=320.0, help="time box of the whole run")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print(NO_GPU)
        return 2
    start = time.monotonic()
    facts = machine_facts()
    print("  ".join(facts.values()), flush=True)
    rows = check_all(options.seconds, num_workers(torch.cuda.mem_get_info()[1]))
    rows += check_engine(ENGINE_S)
    all_right = show(rows)
    print(f"saved {save(options.out, facts, rows, time.monotonic() - start)}")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
