"""What import-linter cannot see: imports made by string, or by libraries."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kernels", "llm_engine", "video_engine", "workers", "service")
HEAVY = "{'torch', 'triton', 'transformers', 'diffusers', 'cv2'}"


@pytest.mark.parametrize(
    "module",
    [
        "service.app",
        "service.__main__",
        "service.cli",
        "workers.client",
        "workers.app",
        "workers.deployment.supervisor",
        "workers.housekeeping",
        "llm_engine.types",
        "llm_engine.config",
        "video_engine.types",
        "video_engine.config",
    ],
)
def test_a_light_module_loads_no_gpu_library(module):
    program = f"import sys, {module}; heavy = {HEAVY} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_only_settings_reads_the_environment():
    pattern = re.compile(r"os\.environ|os\.getenv|from os import environ")
    offenders = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if pattern.search(path.read_text()) and path != ROOT / "workers" / "settings.py"
    ]
    assert offenders == []


def test_no_package_hides_in_the_tests():
    """An `__init__.py` under tests would shadow the package that its folder mirrors."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_module_is_named_after_nothing():
    banned = {"utils", "common", "misc", "helpers", "manager", "handler"}
    named = [p for room in ROOMS for p in (ROOT / room).rglob("*.py") if p.stem in banned]
    assert named == []
