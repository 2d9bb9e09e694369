"""The requirements that implementations state, each with its reason.

All are facts about a device's traits or about a case; none compares capability numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.spec import Case, Requirement

if TYPE_CHECKING:
    from kernels.hardware.traits import DeviceTraits


def on_backends(*backends: str) -> Requirement:
    """The device is driven by one of these back ends ("cuda", "rocm", "cpu" …)."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del case
        if traits.backend in backends:
            return None
        return f"runs on {' or '.join(backends)}; {traits.name} is {traits.backend}"

    return Requirement(name=f"back end {'/'.join(backends)}", unmet=unmet)


def through_triton() -> Requirement:
    """Triton has a compiler for the device, its own or the vendor's."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del case
        if traits.triton in ("yes", "vendor") and traits.kind != "cpu":
            return None
        return f"Triton compiles nothing for {traits.name} (triton: {traits.triton})"

    return Requirement(name="Triton", unmet=unmet)


def trait(name: str, why: str) -> Requirement:
    """A boolean cell of the traits is true; an unknown cell counts as absent."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del case
        value = getattr(traits, name)
        if value:
            return None
        state = "is not known" if value is None else "is absent"
        return f"{name} {state} on {traits.name}: {why}"

    return Requirement(name=name, unmet=unmet)


def dtype_in(*dtypes: str) -> Requirement:
    """The case's dtype is one of these."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del traits
        return None if case.dtype in dtypes else f"dtype {case.dtype} is not {'/'.join(dtypes)}"

    return Requirement(name=f"dtype {'/'.join(dtypes)}", unmet=unmet)


def option_in(option: str, *values: str) -> Requirement:
    """An option of the case has one of these values; absent counts as "none"."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del traits
        value = case.options.get(option, "none")
        return None if value in values else f"{option}={value} is not {'/'.join(values)}"

    return Requirement(name=f"{option} {'/'.join(values)}", unmet=unmet)


def multiple_of(size: str, factor: int, why: str) -> Requirement:
    """A size of the case divides by `factor`."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del traits
        value = case.sizes[size]
        return None if value % factor == 0 else f"{size}={value} is no multiple of {factor}: {why}"

    return Requirement(name=f"{size} % {factor} = 0", unmet=unmet)


def at_most(size: str, bound: int, why: str) -> Requirement:
    """A size of the case is no larger than `bound`."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del traits
        value = case.sizes[size]
        return None if value <= bound else f"{size}={value} is above {bound}: {why}"

    return Requirement(name=f"{size} ≤ {bound}", unmet=unmet)


def one_of(size: str, values: tuple[int, ...], why: str) -> Requirement:
    """A size of the case is one of a list of covered shapes."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del traits
        value = case.sizes[size]
        if value in values:
            return None
        return f"{size}={value} is not covered ({', '.join(map(str, values))}): {why}"

    return Requirement(name=f"{size} in {values}", unmet=unmet)


def e4m3fn_where(option: str) -> Requirement:
    """Where the case's `option` is "fp8", the device converts to e4m3fn; else nothing is asked."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        if case.options.get(option, "none") != "fp8" or traits.fp8_format == "e4m3fn":
            return None
        return f"{option}=fp8 writes e4m3fn; {traits.name} converts to {traits.fp8_format}"

    return Requirement(name=f"e4m3fn where {option}=fp8", unmet=unmet)


def fp8_encoded_as(encoding: str, why: str) -> Requirement:
    """The device's own 8-bit floats have this encoding ("e4m3fn", "e4m3fnuz")."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del case
        if traits.fp8_format == encoding:
            return None
        return f"fp8_format of {traits.name} is {traits.fp8_format}, not {encoding}: {why}"

    return Requirement(name=f"fp8 as {encoding}", unmet=unmet)


def native_build() -> Requirement:
    """The C++ kernels are built, or can be, on the CPU that this runs on."""

    def unmet(traits: DeviceTraits, case: Case) -> str | None:
        del case
        if traits.backend != "cpu":
            return None
        from kernels.native.library import build_problem

        return build_problem()

    return Requirement(name="native build", unmet=unmet)
