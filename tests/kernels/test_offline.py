"""Every kernel compiles for every family it exists on, within its committed budget."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.ops.registry import OPS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=pytest.mark.xdist_group(f"offline {op}")) for op in sorted(OPS)]
)
def test_an_op_stays_within_its_budget(op):
    """In a process of its own: what is interpreted here cannot be compiled here.

    Triton keeps what it compiled in its own cache, by the hash of the source.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    finished = subprocess.run(
        [sys.executable, "tools/kernel_budgets.py", op],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
