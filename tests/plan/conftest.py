"""Plans of presets on described machines."""

import importlib.util
from pathlib import Path

import pytest

from workers.planning.inputs import PlanSizes
from workers.planning.plan import make_plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def golden():
    """The module tools/golden_defaults.py."""
    spec = importlib.util.spec_from_file_location(
        "golden_defaults", ROOT / "tools" / "golden_defaults.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def plan_of():
    """plan_of(model, machine, **sizes): the plan, computed once."""
    known = {}

    def plan(model, machine, **sizes):
        key = (model, machine, tuple(sorted(sizes.items())))
        if key not in known:
            known[key] = make_plan(model, machine, PlanSizes(**sizes))
        return known[key]

    return plan
