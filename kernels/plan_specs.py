"""Where a plan finds specs, and what a vendor's profile takes out of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.hardware.profile import load_profile
from kernels.ops.registry import OPS, op_spec
from kernels.spec import Case, Implementation, OpSpec, Requirement

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits

Lookup = Callable[[str], OpSpec | None]


def registered(name: str) -> OpSpec | None:
    """The spec of an op; None where no kernel of that name exists."""
    return op_spec(name) if name in OPS else None


def specs_within_profile(traits: DeviceTraits, lookup: Lookup = registered) -> Lookup:
    """The lookup with what the vendor's profile rules out made a requirement that is not met."""
    profile = load_profile(traits.backend)
    if "triton" in profile.kernel_classes or traits.kind == "cpu":
        return lookup
    rule = _ruled_out(f"{profile.vendor}: {profile.reason('kernel_classes')}")

    def ruled(name: str) -> OpSpec | None:
        spec = lookup(name)
        return None if spec is None else replace(spec, implementations=_ruled(spec, rule))

    return functools.cache(ruled)


def _ruled(spec: OpSpec, rule: Requirement) -> tuple[Implementation, ...]:
    return tuple(
        replace(i, requires=(*i.requires, rule)) if ".triton_kernel:" in i.entry else i
        for i in spec.implementations
    )


def _ruled_out(why: str) -> Requirement:
    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del traits, case
        return f"Triton kernels are not relied on here ({why})"

    return Requirement(name="vendor profile", unmet=unmet)
