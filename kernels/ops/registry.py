"""Every op by name. A miss raises an error that lists the names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernels.spec import load_entry

if TYPE_CHECKING:
    from kernels.offline import Build
    from kernels.spec import OpSpec

OPS: Mapping[str, str] = {
    "rms_norm": "kernels.ops.rms_norm.spec",
}


def op_spec(name: str) -> OpSpec:
    """The spec of an op.

    Raises:
        KeyError: lists the ops there are.
    """
    if name not in OPS:
        raise KeyError(f"no op {name!r}; there are: {', '.join(sorted(OPS))}")
    spec: OpSpec = load_entry(f"{OPS[name]}:SPEC")  # type: ignore[assignment]
    return spec


def op_builds(name: str) -> tuple[Build, ...]:
    """The configurations of an op that are compiled offline."""
    builds: tuple[Build, ...] = load_entry(f"{OPS[name]}:BUILDS")  # type: ignore[assignment]
    return builds
