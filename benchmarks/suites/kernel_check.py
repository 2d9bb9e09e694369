"""The child of the GPU check: one JSON line when a case begins, one with what came of it.

`python -m benchmarks.suites.kernel_check DEVICE check|time START OP…`. It leaves with 3 where a
kernel spoiled the device's context: its parent goes on behind that case with another process.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.suites.kernel_cases import cases_for
from benchmarks.suites.kernel_oracle import make_trial
from benchmarks.suites.kernels import bound, contenders, judged, make_bench, rows_of
from benchmarks.timing import Effort
from kernels.ops.registry import op_spec
from kernels.runtime import device_traits
from kernels.spec import Case, Implementation, OpSpec

Row = dict[str, Any]

CONTEXT_LOST = 3
EFFORT = Effort(budget_s=0.4, min_rounds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One case of one implementation; `kind` is "real" for a model's shape, else "odd"."""

    spec: OpSpec
    implementation: Implementation
    case: Case
    kind: str
    model: str = ""

    def head(self) -> Row:
        """What identifies it in the result."""
        return {
            "op": self.spec.name,
            "check": self.kind,
            "implementation": self.implementation.name,
            "case": str(self.case),
            "model": self.model,
        }


def checks_of(op: str, device: torch.device) -> list[Check]:
    """The first real shape, the odd ones of the op's tests, then the other real ones."""
    spec, traits = op_spec(op), device_traits(device.type, device.index or 0)
    real = [("real", model, case) for model, case in cases_for(device.type)[op]]
    odd = [("odd", "", case) for case in spec.cases]
    return [
        Check(spec=spec, implementation=implementation, case=case, kind=kind, model=model)
        for kind, model, case in [*real[:1], *odd, *real[1:]]
        for implementation in contenders(spec, case, traits)
    ]


def checked(check: Check, device: torch.device) -> Row:
    """Error ratio and verdict; a case that the device's memory cannot hold has no verdict."""
    try:
        trial = make_trial(check.spec, check.case, device)
        row = judged(trial, bound(check.implementation.load(), trial))
    except torch.OutOfMemoryError:
        return {"skipped": "out of memory"}
    except Exception as raised:  # noqa: BLE001 - one broken case must not end the others
        row = {"error": None, "failure": f"reference raised {type(raised).__name__}: {raised}"}
    return row | {"passed": "failure" not in row}


def timed(device: torch.device, ops: Sequence[str], start: int) -> Iterator[tuple[Row, Row]]:
    """The limits, then the first case of each op, then the second of each, and so on."""
    bench = make_bench(device, EFFORT)
    if start == 0:
        yield {"check": "limits"}, bench.limits.as_dict()
    cases = cases_for(device.type)
    by_op = ([(op_spec(op), model, case) for model, case in cases[op]] for op in ops)
    in_turn = [found for turn in itertools.zip_longest(*by_op) for found in turn if found]
    for spec, model, case in in_turn[max(start - 1, 0) :]:
        head = {"op": spec.name, "check": "time", "model": model, "case": str(case)}
        _say({"begins": True} | head)
        try:
            first, *others = rows_of(spec, model, case, bench)
        except torch.OutOfMemoryError:
            yield head, {"skipped": "out of memory"}
            continue
        yield head, first | ({"others": others} if others else {})


def _say(message: Row) -> None:
    print(json.dumps(message), flush=True)


def _is_alive(device: torch.device) -> bool:
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Do the cases from `START` on; returns the exit code."""
    name, mode, start, *ops = arguments
    device = torch.device(name)
    if mode == "time":
        for head, row in timed(device, ops, int(start)):
            _say(head | row)
            if not _is_alive(device):
                return CONTEXT_LOST
        return 0
    checks = [check for op in ops for check in checks_of(op, device)]
    for check in checks[int(start) :]:
        _say({"begins": True} | check.head())
        _say(checked(check, device))
        if not _is_alive(device):
            return CONTEXT_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
