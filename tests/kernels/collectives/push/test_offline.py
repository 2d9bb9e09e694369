"""The push kernel compiled for NVIDIA's families: its budget, and the order that its code keeps."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.offline import TARGETS

ROOT = Path(__file__).resolve().parents[4]
FAMILIES = [family for family, target in TARGETS.items() if target[0] == "cuda"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("offline push")]

# In a process of its own: what is interpreted here cannot be compiled here.
COMPILE = """
import json, sys
from kernels.collectives.push.builds import BUILDS
from kernels.offline import compiled
print(json.dumps({build.name: compiled(build, sys.argv[1]).asm["ptx"] for build in BUILDS}))
"""


def run(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    finished = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_the_kernel_stays_within_its_budget():
    run("tools/kernel_budgets.py", "push")


def events(ptx):
    """S a payload's store, R a raised flag, A an awaited one, J threads joined, T the end."""
    found = re.findall(
        r"(?P<S>@%p\d+ st\.global\.b64)|(?P<R>@first st\.release\.sys\.global\.b64)"
        r"|(?P<A>ld\.acquire\.sys\.global\.b64)|(?P<J>barrier\.cta\.red\.or\.pred bad)"
        r"|(?P<T>fence\.sc\.sys; barrier\.cta\.sync 0; trap;)",
        ptx,
    )
    return "".join(letter for row in found for letter, hit in zip("SRAJT", row, strict=True) if hit)


@pytest.mark.parametrize("family", FAMILIES)
def test_flags_stand_between_what_is_written_and_what_is_read(family):
    for name, ptx in json.loads(run("-c", COMPILE, family)).items():
        pushes, _, rest = events(ptx).partition("A")
        # Threads agree whether an exchange has failed before; then writes, a flag behind each. Of a
        # loop over many ranks the block with the flag is laid out first.
        assert re.fullmatch(r"J((S+R)+|RS+)", pushes), (name, pushes)
        waits = re.match(r"J(AJ)*", rest)
        assert waits, (name, rest)
        # Nothing is written to a peer between the waits; flags of blame come last, then the end.
        # The block that keeps the epoch may be laid out behind it.
        assert re.fullmatch(r"S*R+TS?", rest[waits.end() :]), (name, rest)
        # A raise is behind a barrier of all threads.
        raises = re.findall(r"([^\n]*)\n\s*@first st\.release\.sys", ptx)
        assert set(map(str.strip, raises)) == {"barrier.cta.sync 0;"}, name
        # Not every path over PCIe carries atomic operations; caches that nobody keeps in step are
        # not read through.
        assert not re.search(r"\b(atom|red)\.(?!or\.pred)", ptx), name
        assert not re.search(r"ld\.global\S*\.(nc|ca)\b", ptx), name
