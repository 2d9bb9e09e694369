"""Compile every kernel for every family it exists on; compare with, or write, the budgets.

`--check` fails where a kernel takes more registers, spills or shared memory than its committed
budget, or loses its matrix instructions; `--write` commits what it takes now. Budgets lie beside
the tests, one file an op.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernels.hardware.traits import load_traits  # noqa: E402
from kernels.offline import TARGETS, Build, Usage, compile_for  # noqa: E402
from kernels.ops.registry import OPS, op_builds  # noqa: E402
from kernels.spec import load_entry  # noqa: E402

# Kernels that are no op, by the module that holds their builds.
OTHERS = {"push": "kernels.collectives.push.builds"}
BUDGETS = ROOT / "tests" / "kernels" / "budgets"


def builds_of(name: str) -> tuple[Build, ...]:
    """What is compiled of an op, or of other kernels."""
    builds: tuple[Build, ...] = (
        load_entry(f"{OTHERS[name]}:BUILDS") if name in OTHERS else op_builds(name)
    )
    return builds


def measure(build: Build) -> dict[str, Usage | str]:
    """Usage by family, or the reason why the build does not exist there."""
    return {family: build.skip.get(family) or compile_for(build, family) for family in TARGETS}


def complaints(build: Build, family: str, now: Usage, budget: dict[str, object]) -> list[str]:
    """What is worse than the budget, or forbidden on a hot configuration."""
    found = []
    for field in ("registers", "spills", "shared_bytes"):
        allowed = budget.get(field)
        if not isinstance(allowed, int):
            found.append(f"no budget for {field}: run tools/kernel_budgets.py --write")
        elif getattr(now, field) > allowed:
            found.append(f"{field} {getattr(now, field)} above the budget {allowed}")
    if now.matrix != budget.get("matrix"):
        found.append(f"matrix unit {now.matrix}, budget {budget.get('matrix')}")
    if build.hot and now.spills:
        found.append(f"{now.spills} spills on a hot configuration")
    limit = load_traits(family).max_smem_bytes
    if limit is not None and now.shared_bytes > limit:
        found.append(f"{now.shared_bytes} B of shared memory; the family allows {limit}")
    return [f"{build.name} on {family}: {line}" for line in found]


def check(op: str) -> list[str]:
    """All complaints about an op."""
    path = BUDGETS / f"{op}.json"
    budgets = json.loads(path.read_text()) if path.exists() else {}
    found = []
    for build in builds_of(op):
        for family, usage in measure(build).items():
            if isinstance(usage, Usage):
                budget = budgets.get(build.name, {}).get(family, {})
                found += complaints(build, family, usage, budget)
    return found


def write(op: str) -> None:
    """Write the budget file of an op."""
    BUDGETS.mkdir(parents=True, exist_ok=True)
    table = {
        build.name: {
            family: asdict(usage) if isinstance(usage, Usage) else {"skipped": usage}
            for family, usage in measure(build).items()
        }
        for build in builds_of(op)
    }
    (BUDGETS / f"{op}.json").write_text(json.dumps(table, indent=1) + "\n")


def main() -> int:
    """Check or write the ops named, all by default; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", default=sorted([*OPS, *OTHERS]))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        for op in options.ops:
            write(op)
        return 0
    found = [line for op in options.ops for line in check(op)]
    print("\n".join(found) or "all kernels within their budgets")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
