"""Building: cached by content, safe at once, and a clear reason where it cannot be done."""

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.errors import NativeBuildFailed
from kernels.native import build as building
from kernels.native.build import BuildSettings, build, find_compiler
from kernels.native.library import STRUCTURES, Library, library

ROOT = Path(__file__).parents[3]
FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo "fake {version}"; exit 0; fi
echo run >> "{folder}/runs"
{body}
"""
COPY = 'sleep 0.2\nwhile [ "$1" != -o ]; do shift; done; echo made > "$2"'


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a compiler of one's own on the path; returns settings that use it."""

    def make(body: str, version: str = "1") -> BuildSettings:
        script = tmp_path / "fake-cxx"
        script.write_text(FAKE.format(version=version, folder=tmp_path, body=body))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return BuildSettings(folder=tmp_path / "cache", compilers=("no-such-cxx", "fake-cxx"))

    return make


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().split())


def test_a_library_is_built_once(fake, tmp_path: Path) -> None:
    settings = fake(COPY)
    first = build(settings)
    assert (first.read_text(), build(settings), runs(tmp_path)) == ("made\n", first, 1)
    assert [path.name for path in settings.folder.iterdir()] == [first.name]


def test_what_it_is_made_from_names_it(fake, tmp_path: Path) -> None:
    sources = tmp_path / "src"
    shutil.copytree(building.SOURCES, sources)
    settings = replace(fake(COPY), sources=sources)
    paths = {build(settings), build(replace(settings, options=("-O1",)))}
    (sources / "pool.h").write_text("// changed")
    paths.add(build(settings))
    fake(COPY, version="2")
    paths.add(build(settings))
    assert len(paths) == 4


def test_processes_may_build_at_once(fake, tmp_path: Path) -> None:
    settings = fake(COPY)
    code = (
        "from pathlib import Path; from kernels.native.build import *;"
        f"print(build(BuildSettings(folder=Path({str(settings.folder)!r}), "
        "compilers=('fake-cxx',))))"
    )
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(4)
    ]
    printed = {process.communicate(timeout=60)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0] * 4
    (path,) = printed
    assert Path(path).read_text() == "made\n"
    assert [left.name for left in settings.folder.iterdir()] == [Path(path).name]


def test_no_compiler_says_what_was_looked_for(tmp_path: Path) -> None:
    settings = BuildSettings(folder=tmp_path, compilers=("no-such-cxx", "nor-this"))
    assert find_compiler(settings.compilers) is None
    with pytest.raises(NativeBuildFailed, match=r"looked for no-such-cxx, nor-this; install one"):
        build(settings)


def test_a_failing_compiler_is_quoted_and_leaves_nothing(fake) -> None:
    settings = fake('echo "no such header" >&2; exit 3')
    with pytest.raises(NativeBuildFailed, match="ended with 3: no such header"):
        build(settings)
    assert list(settings.folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(fake, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeBuildFailed, match="cannot write"):
        build(replace(fake(COPY), folder=tmp_path / "file" / "cache"))


def test_a_broken_library_is_refused(fake) -> None:
    with pytest.raises(NativeBuildFailed, match="cannot load"):
        library(fake(COPY))


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")
def test_the_library_of_this_machine_loads() -> None:
    native = library()
    assert isinstance(native, Library)
    assert native.backend() in (b"avx2", b"avx512-vnni", b"avx512-vnni+amx", b"portable")
    assert native.lanes() in (8, 16)
    sizes = [native.struct_bytes(index) for index in range(len(STRUCTURES) + 1)]
    assert sizes == [*(ctypes.sizeof(structure) for structure in STRUCTURES), 0]
