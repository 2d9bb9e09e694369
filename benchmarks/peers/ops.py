"""Libraries to compare with, each imported when it is asked for and "n/a" where it is absent.

An adapter takes the arguments that an op's example makes and returns a call without arguments.
What a model would prepare once for all layers (page tables, contiguous caches) is not timed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.peers.absence import PeerAbsent
from kernels.spec import OpSpec, load_entry

# Peer → its module, its distribution, and whether it runs on a CPU.
LIBRARIES: Mapping[str, tuple[str, str, bool]] = {
    "torch": ("torch", "torch", True),
    "flash_attn": ("flash_attn", "flash-attn", False),
    "liger_kernel": ("liger_kernel", "liger-kernel", False),
    "flashinfer": ("flashinfer", "flashinfer-python", False),
}

# (op, peer) → the adapter.
ADAPTERS: Mapping[tuple[str, str], str] = {
    ("rms_norm", "torch"): "benchmarks.peers.torch_ops:rms_norm",
    ("swiglu", "torch"): "benchmarks.peers.torch_ops:swiglu",
    ("full_attention", "torch"): "benchmarks.peers.torch_ops:full_attention",
    ("adaln_modulate", "torch"): "benchmarks.peers.torch_ops:adaln_modulate",
    ("rms_norm", "liger_kernel"): "benchmarks.peers.liger:rms_norm",
    ("swiglu", "liger_kernel"): "benchmarks.peers.liger:swiglu",
    ("rms_norm", "flashinfer"): "benchmarks.peers.flashinfer_ops:rms_norm",
    ("swiglu", "flashinfer"): "benchmarks.peers.flashinfer_ops:swiglu",
    ("full_attention", "flash_attn"): "benchmarks.peers.flash:full_attention",
    ("paged_prefill", "flash_attn"): "benchmarks.peers.flash:paged_prefill",
    ("paged_decode", "flash_attn"): "benchmarks.peers.flash:paged_decode",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A library's form of an op, ready to call; `absent` says why there is none."""

    name: str
    version: str = ""
    call: Callable[[], Any] | None = None
    absent: str = ""


def peers_of(
    spec: OpSpec, args: tuple[Any, ...], options: dict[str, Any], device: torch.device
) -> tuple[Peer, ...]:
    """Every peer that the spec names or an adapter exists for, absent ones with the reason."""
    adapted = [peer for op, peer in ADAPTERS if op == spec.name]
    names = dict.fromkeys([*adapted, *spec.peers])
    return tuple(_peer(spec.name, name, args, options, device) for name in names)


def _peer(
    op: str, name: str, args: tuple[Any, ...], options: dict[str, Any], device: torch.device
) -> Peer:
    if (op, name) not in ADAPTERS:
        return Peer(name=name, absent="n/a: no adapter to it here")
    module, distribution, on_cpu = LIBRARIES[name]
    if importlib.util.find_spec(module) is None:
        return Peer(name=name, absent="n/a: not installed")
    if device.type == "cpu" and not on_cpu:
        return Peer(name=name, absent="n/a: runs on GPUs alone")
    try:
        call = load_entry(ADAPTERS[op, name])(args, options)
    except (PeerAbsent, ImportError) as error:
        return Peer(name=name, absent=f"n/a: {error}")
    return Peer(name=name, version=importlib.metadata.version(distribution), call=call)
