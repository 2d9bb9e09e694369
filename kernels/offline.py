"""Compile a Triton kernel for a card that is not here, and read off what it would use.

The proof that a kernel builds, does not spill and uses the family's matrix instructions, on a
machine without that family. Needs the Triton package alone: its compilers come with it.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Families that can be compiled for offline: Triton's back end, its name there, threads of a warp.
TARGETS: Mapping[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_86": ("cuda", 86, 32),
    "sm_89": ("cuda", 89, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx942": ("hip", "gfx942", 64),
    "gfx1100": ("hip", "gfx1100", 32),
}

# Which instruction of the final code shows which matrix unit.
MATRIX_INSTRUCTIONS: Mapping[str, str] = {
    "tcgen05": r"tcgen05\.mma",
    "wgmma": r"wgmma\.mma_async",
    "mma.sync": r"\bmma\.sync",
    "mfma": r"v_mfma",
    "wmma": r"v_wmma",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One configuration of one kernel. `kernel` is `module:function` of a `@triton.jit` function.

    `hot` marks the configurations that engines run: those may not spill. `skip` maps a family to
    the reason why this configuration cannot exist there.
    """

    name: str
    kernel: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    hot: bool = True
    skip: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the compiled kernel takes of a multiprocessor.

    Units: registers a thread; spilled registers (AMD) or bytes of stack (NVIDIA); bytes of shared
    memory a block. `matrix` names the matrix unit in the final code, or "none".
    """

    registers: int
    spills: int
    shared_bytes: int
    matrix: str


def compile_for(build: Build, family: str) -> Usage:
    """Compile for a family of `TARGETS`, and read off what it takes. Raises: as `compiled`."""
    code = compiled(build, family)
    if TARGETS[family][0] == "cuda":
        registers, spills = _cubin_usage(code.asm["cubin"])
        text = code.asm["ptx"]
    else:
        text = code.asm["amdgcn"]
        registers, spills = _amdgcn_usage(text)
    return Usage(
        registers=registers,
        spills=spills,
        shared_bytes=int(code.metadata.shared),
        matrix=_matrix_unit(text),
    )


def compiled(build: Build, family: str) -> Any:  # noqa: ANN401 - Triton's class is without stubs
    """Triton's compiled kernel, with its code in every stage under `asm`.

    Raises:
        KeyError: the family has no offline target.
        Exception: what Triton's compiler says when it cannot compile this for the family.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, architecture, warp_size = TARGETS[family]
    module, _, name = build.kernel.partition(":")
    signature = dict(build.signature) | dict.fromkeys(build.constexprs, "constexpr")
    source = ASTSource(
        fn=getattr(importlib.import_module(module), name),
        signature=signature,
        constexprs=dict(build.constexprs),
    )
    options = {"num_warps": build.num_warps, "num_stages": build.num_stages}
    target = GPUTarget(backend, architecture, warp_size)
    return triton.compile(source, target=target, options=options)


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    from triton import knobs

    tool = Path(str(knobs.nvidia.cuobjdump.path))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(tool), "-res-usage", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = _number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text)
    return registers, stack + _number(r"LOCAL:(\d+)", text)


def _amdgcn_usage(code: str) -> tuple[int, int]:
    spills = _number(r"\.vgpr_spill_count:\s+(\d+)", code)
    return _number(r"\.vgpr_count:\s+(\d+)", code), spills


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler's report has no {pattern!r}: {text[:400]}")
    return int(found.group(1))


def _matrix_unit(code: str) -> str:
    for name, pattern in MATRIX_INSTRUCTIONS.items():
        if re.search(pattern, code):
            return name
    return "none"
