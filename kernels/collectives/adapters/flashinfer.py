"""Whether the FlashInfer that is installed has the PCIe collectives that are bound here.

Bound to three classes of `flashinfer.comm`: the all-reduce workspace (pull request 4393), and
those of all-gather and reduce-scatter (5023). Versions differ, so classes, methods and parameters
are looked up before anything is opened, and what is not as it was read is refused with the reason.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

PACKAGE = "flashinfer-python"
RANKS = (2, 4, 8)
_MADE_WITH = ("group", "max_numel", "dtype")
_CALLED_WITH = ("inp", "out")
_METHODS = ("supports", "rebind_stream", "destroy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One of FlashInfer's collectives: the class that holds its buffers, and the method to call."""

    workspace: str
    method: str


FORMS: Mapping[str, Form] = {
    "all_reduce": Form(workspace="PcieIpcAllReduceWorkspace", method="all_reduce"),
    "all_gather": Form(workspace="PcieIpcAllGatherWorkspace", method="all_gather"),
    "reduce_scatter": Form(workspace="PcieIpcReduceScatterWorkspace", method="reduce_scatter"),
}


def installed() -> str:
    """The package and its version; empty where it is not installed."""
    try:
        return f"{PACKAGE} {metadata.version(PACKAGE)}"
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def unmet_flashinfer(operation: str) -> str | None:
    """Why an operation of the installed FlashInfer cannot be used; None where it can be tried.

    A fact of the process: the package is imported only where there is a device.
    """
    name = installed()
    if not name:
        return f"{PACKAGE} is not installed"
    if not torch.cuda.is_available() or torch.version.hip:
        return f"{name}: its PCIe kernels need NVIDIA devices, torch sees none"
    try:
        comm = importlib.import_module("flashinfer.comm")
    except (ImportError, OSError, RuntimeError) as error:
        return f"{name}: flashinfer.comm cannot be imported: {type(error).__name__}: {error}"
    problem = unmet_form(comm, FORMS[operation])
    return f"{name}: {problem}" if problem else None


def unmet_form(comm: Any, form: Form) -> str | None:  # noqa: ANN401 - a module of another project
    """How a class differs from the one that is bound; None where it does not."""
    workspace = getattr(comm, form.workspace, None)
    if workspace is None:
        return f"has no comm.{form.workspace}"
    absent = [name for name in (form.method, *_METHODS) if not hasattr(workspace, name)]
    if absent:
        return f"comm.{form.workspace} has no {', '.join(absent)}"
    method = getattr(workspace, form.method)
    calls: dict[str, tuple[Any, tuple[str, ...]]] = {
        "": (workspace, _MADE_WITH),
        f".{form.method}": (method, _CALLED_WITH),
    }
    for suffix, (function, needed) in calls.items():
        known = inspect.signature(function).parameters
        unknown = [name for name in needed if name not in known]
        if unknown:
            return f"comm.{form.workspace}{suffix} takes no {', '.join(unknown)}"
    return None
