"""The default implementation of every op on every family of devices, as one committed table.

`--write` writes tests/plan/golden_defaults.json; without it the rows that changed are printed.
Cases are those of the presets' plans; an op that no preset uses shows its own first cases.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernels.dispatch import choose  # noqa: E402
from kernels.errors import NoImplementation  # noqa: E402
from kernels.hardware.traits import DeviceTraits, family_names, load_traits  # noqa: E402
from kernels.layer_groups import ModelShape  # noqa: E402
from kernels.ops.registry import OPS  # noqa: E402
from kernels.plan_specs import Lookup, registered, specs_within_profile  # noqa: E402
from kernels.spec import Case  # noqa: E402
from llm_engine.plan import families as llm  # noqa: E402
from llm_engine.plan.request import PlanRequest  # noqa: E402
from video_engine.plan import families as video  # noqa: E402
from video_engine.plan.request import ClipRequest  # noqa: E402

GOLDEN = ROOT / "tests" / "plan" / "golden_defaults.json"

Rows = dict[str, dict[str, str]]


def shapes() -> Iterator[ModelShape]:
    """Every preset, in each format of cache and activations."""
    for name in llm.preset_names():
        raw = llm.preset(name)
        for cache in ("bf16", "fp8"):
            for has_fp8_math in (True, False):
                request = PlanRequest(cache=cache, has_fp8_math=has_fp8_math, batch=8)
                yield llm.describe(raw, request, name=name)
    for name in video.preset_names():
        yield video.describe(video.preset(name), ClipRequest(), name=name)


def cases_by_op(lookup: Lookup = registered) -> dict[str, list[Case]]:
    """The cases to decide, by op that has a spec."""
    found: dict[str, dict[str, Case]] = {name: {} for name in OPS}
    for shape in shapes():
        for phase in shape.phases:
            for group in phase.groups:
                for use in group.uses:
                    if use.op in found:
                        found[use.op].setdefault(str(use.case), use.case)
    for name, cases in found.items():
        spec = lookup(name)
        if not cases and spec is not None:
            cases.update({str(case): case for case in spec.cases if all(case.sizes.values())})
    return {name: list(cases.values()) for name, cases in found.items()}


def rows(lookup: Lookup = registered) -> Rows:
    """For every "family op": kind of case -> implementations and tiers."""
    cases = cases_by_op(lookup)
    return {
        f"{family} {op}": _row(op, cases[op], load_traits(family), lookup)
        for family in family_names()
        for op in sorted(cases)
    }


def _row(op: str, cases: list[Case], traits: DeviceTraits, lookup: Lookup) -> dict[str, str]:
    spec = specs_within_profile(traits, lookup)(op)
    assert spec is not None
    chosen: dict[str, set[str]] = {}
    for case in cases:
        kind = " ".join([case.dtype, *(f"{k}={v}" for k, v in sorted(case.options.items()))])
        try:
            decision = choose(spec, case, traits)
            words = f"{decision.chosen} ({decision.tier})"
        except NoImplementation:
            words = "nothing"
        chosen.setdefault(kind, set()).add(words)
    return {kind: " or ".join(sorted(words)) for kind, words in sorted(chosen.items())}


def changes(before: Rows, after: Rows) -> list[str]:
    """One line for each row that differs: what it was, what it is."""
    found: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, {}), after.get(name, {})
        found += [
            f"{name} [{kind}]: {old.get(kind, 'no row')} -> {new.get(kind, 'no row')}"
            for kind in sorted(old.keys() | new.keys())
            if old.get(kind) != new.get(kind)
        ]
    return found


def committed() -> Rows:
    """The table as committed; empty where there is none."""
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    found = rows()
    lines = changes(committed(), found)
    if parser.parse_args().write:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(lines)} changed")
        return 0
    print("\n".join(lines) or "all defaults as committed")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
