"""The default kernel of every op on every family, pinned; a switch for one moves no other."""

from dataclasses import replace

import pytest

from kernels.hardware.traits import family_names
from kernels.ops.registry import OPS
from kernels.plan_specs import registered
from kernels.spec import Implementation, Requirement, Tier

FAMILY, OP = "sm_120", "rms_norm"


def only_on(family):
    def unmet(traits, case):
        del case
        return None if traits.name == family else f"made for {family}"

    return Requirement(name=family, unmet=unmet)


def test_defaults_are_the_committed_ones(golden):
    changes = golden.changes(golden.committed(), golden.rows())
    assert not changes, "run tools/golden_defaults.py --write if meant:\n" + "\n".join(changes)


def test_there_is_a_row_for_every_family_and_op(golden):
    rows = golden.committed()
    assert set(rows) == {f"{family} {op}" for family in family_names() for op in OPS}
    assert all(rows.values())


def test_a_default_switched_on_for_one_family_moves_that_row_alone(golden):
    special = Implementation(
        name="special", tier=Tier.FUSED, entry="nowhere:special", requires=(only_on(FAMILY),)
    )

    def with_special(name):
        spec = registered(name)
        if name != OP:
            return spec
        return replace(spec, implementations=(special, *spec.implementations))

    changes = golden.changes(golden.rows(), golden.rows(with_special))
    assert changes
    assert all(line.startswith(f"{FAMILY} {OP} [") for line in changes)
    assert all(line.endswith("-> special (fused)") for line in changes)


def test_a_change_is_named_with_both_sides(golden):
    before = {"sm_120 rms_norm": {"bf16": "triton (fused)"}}
    after = {"sm_120 rms_norm": {"bf16": "torch (generic)"}}
    assert golden.changes(before, after) == [
        "sm_120 rms_norm [bf16]: triton (fused) -> torch (generic)"
    ]


@pytest.mark.parametrize("family", ["musa_s5000", "kunlun_p800", "metax_c500", "ascend_910b"])
def test_a_profile_that_does_not_rely_on_triton_takes_no_triton_kernel(golden, family):
    rows = golden.committed()
    mine = [row for name, row in rows.items() if name.startswith(f"{family} ")]
    assert mine
    assert not any("triton" in words for row in mine for words in row.values())
