"""The top-level package `kernels` shares its name with another distribution: defend it."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_other_distribution_called_kernels_is_absent():
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("kernels")


def test_our_version_stays_below_every_window_that_transformers_accepts():
    assert metadata.version("lanewise").startswith("0.1.")


@pytest.mark.slow
def test_transformers_imports_with_our_packages_first_on_the_path():
    program = (
        "import transformers.integrations.hub_kernels; from transformers import T5EncoderModel"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


def test_the_kernels_package_loads_neither_torch_nor_triton():
    program = (
        "import sys, kernels; assert kernels.__version__ == '0.1.0';"
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
