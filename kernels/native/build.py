"""Building the C++ sources with the machine's compiler, into a cache shared by all processes.

A library is named by what it was made from (sources, compiler, options, the processor's flags), so
it is never stale; it is written under another name and moved into place, so processes that build
at once do not disturb each other. Free of torch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from kernels.errors import NativeBuildFailed

SOURCES = Path(__file__).parent / "src"
MAIN = "lanewise.cpp"
COMPILERS = ("g++", "clang++")
# Contraction would let the compiler fuse a product and a sum in one kernel and not in another.
OPTIONS = (
    "-std=c++17",
    "-O3",
    "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-pthread",
)
_CPUINFO = Path("/proc/cpuinfo")
_TIMEOUT_S = 300
_SHOWN_CHARACTERS = 500


def default_cache() -> Path:
    """Where libraries are kept unless a folder is given."""
    return Path.home() / ".cache" / "lanewise" / "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """What is built how. `compilers` are tried in order; the first on the path is used."""

    folder: Path = field(default_factory=default_cache)
    compilers: tuple[str, ...] = COMPILERS
    options: tuple[str, ...] = OPTIONS
    sources: Path = SOURCES


def find_compiler(names: tuple[str, ...] = COMPILERS) -> str | None:
    """The path of the first compiler there is."""
    return next((path for name in names if (path := shutil.which(name))), None)


def missing_compiler(names: tuple[str, ...] = COMPILERS) -> str:
    """What to say where there is none."""
    return f"no C++ compiler: looked for {', '.join(names)}; install one"


def build(settings: BuildSettings) -> Path:
    """The library's path, compiled if it is not there yet.

    Raises: NativeBuildFailed saying what was looked for, or how the compiler ended.
    """
    compiler = find_compiler(settings.compilers)
    if compiler is None:
        raise NativeBuildFailed(missing_compiler(settings.compilers))
    target = settings.folder / f"lanewise-{_key(settings, compiler)}.so"
    if target.is_file():
        return target
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=settings.folder) as scratch:
            made = Path(scratch) / target.name
            _run([compiler, *settings.options, str(settings.sources / MAIN), "-o", str(made)])
            os.replace(made, target)
    except OSError as error:
        raise NativeBuildFailed(f"cannot write {settings.folder}: {error}") from error
    return target


def _key(settings: BuildSettings, compiler: str) -> str:
    """A digest of everything that decides the library's code."""
    digest = hashlib.sha256()
    for path in sorted(settings.sources.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    version = _run([compiler, "--version"])
    for part in (compiler, version, *settings.options, platform.machine(), _cpu_flags()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:20]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildFailed(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip()[:_SHOWN_CHARACTERS]
        raise NativeBuildFailed(f"{command[0]} ended with {done.returncode}: {said}")
    return done.stdout


def _cpu_flags() -> str:
    """The first line of flags; the processor's name where there is no such file."""
    if not _CPUINFO.is_file():
        return platform.processor()
    lines = _CPUINFO.read_text("utf-8", errors="replace").splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
