"""The C interface of the native kernels: its structures, its functions, and pools of threads."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

from kernels.errors import NativeBuildFailed
from kernels.native.build import BuildSettings, build


class Weight(Structure):
    """A packed matrix; see weights.h."""

    _fields_ = (
        ("data", c_void_p),
        ("bias", c_void_p),
        ("num_rows", c_int64),
        ("num_columns", c_int64),
        ("panel_stride", c_int64),
        ("bits", c_int32),
        ("group", c_int32),
        ("has_minima", c_int32),
        ("has_wide_scales", c_int32),
    )


class Norm(Structure):
    """An RMSNorm; without a weight, none."""

    _fields_ = (("weight", c_void_p), ("eps", c_float))


class Heads(Structure):
    """The heads of a layer's attention, and the geometry of its cache; see attention.h."""

    _fields_ = (
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("page_size", c_int64),
        ("eps", c_float),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
    )


class Step(Structure):
    """One step's rows, spans and pages; see attention.h."""

    _fields_ = (
        ("num_rows", c_int64),
        ("num_spans", c_int64),
        ("positions", c_void_p),
        ("row_span", c_void_p),
        ("span_row", c_void_p),
        ("pages", c_void_p),
        ("span_page", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
    )


class AttentionBlock(Structure):
    """The weights of an attention block."""

    _fields_ = (
        ("norm", Norm),
        ("qkv", POINTER(Weight)),
        ("out", POINTER(Weight)),
        ("heads", Heads),
    )


class MlpBlock(Structure):
    """The weights of an MLP block."""

    _fields_ = (("norm", Norm), ("gate_up", POINTER(Weight)), ("down", POINTER(Weight)))


STRUCTURES = (Weight, Norm, Heads, Step, AttentionBlock, MlpBlock)

# Pointers are passed as plain addresses: converting a typed one costs more than a short call.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "lw_backend": (c_char_p, ()),
    "lw_lanes": (c_int32, ()),
    "lw_struct_bytes": (c_int64, (c_int32,)),
    "lw_pool_create": (c_void_p, (c_int32,)),
    "lw_pool_destroy": (None, (c_void_p,)),
    "lw_packed_bytes": (c_int64, (c_void_p,)),
    "lw_all_exact_half": (c_int32, (c_void_p, c_int64)),
    "lw_pack": (None, (c_void_p,) * 5),
    "lw_rows": (None, (c_void_p, c_void_p, c_int64, c_void_p)),
    "lw_product": (None, (c_void_p,) * 4 + (c_int64, c_void_p)),
    "lw_mlp_block": (None, (c_void_p, c_void_p, c_void_p, c_int64)),
    "lw_attention_block": (None, (c_void_p,) * 5),
    "lw_decoder_stack": (None, (c_void_p,) * 3 + (c_int64,) + (c_void_p,) * 3),
    "lw_attend": (None, (c_void_p,) * 6),
    "lw_add_in_order": (None, (c_int32, c_void_p, c_int32, c_int64, c_void_p, c_void_p)),
    "lw_int8_encode": (None, (c_int32, c_void_p, c_int64, c_void_p)),
    "lw_int8_decode": (None, (c_int32, c_void_p, c_int64, c_void_p)),
    "lw_int8_settle": (
        None,
        (c_int32, c_void_p, c_int64, c_void_p, c_int32, c_int32, c_void_p),
    ),
}


class Library:
    """A loaded build; its functions by name."""

    def __init__(self, path: Path) -> None:
        """Load the file. Raises: NativeBuildFailed if it cannot be loaded here."""
        try:
            self._functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeBuildFailed(f"cannot load {path}: {error}") from error
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._functions, name)
            function.restype = result
            function.argtypes = arguments

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a foreign function
        """The C function `lw_<name>`."""
        return getattr(self._functions, f"lw_{name}")


class Pool:
    """Threads that serve one call at a time; the calling thread is one of them."""

    def __init__(self, library: Library, num_threads: int) -> None:
        """Start `num_threads - 1` threads; they sleep while there is nothing to do."""
        assert num_threads >= 1
        self.num_threads = num_threads
        self._destroy = library.pool_destroy
        self.handle: int = library.pool_create(num_threads)

    def __del__(self) -> None:
        """Stop the threads."""
        self._destroy(self.handle)


@functools.lru_cache(maxsize=8)
def library(settings: BuildSettings | None = None) -> Library:
    """The library of this machine, built on first use.

    Raises: NativeBuildFailed; the reason is found anew at each call.
    """
    return Library(build(settings or BuildSettings()))


@functools.lru_cache(maxsize=8)
def pool(num_threads: int) -> Pool:
    """The process's pool of that many threads; a call of one user waits for that of another."""
    return Pool(library(), num_threads)


@functools.lru_cache(maxsize=1)
def build_problem() -> str | None:
    """Why there is no library on this machine; None where there is one. Found once a process."""
    try:
        library()
    except NativeBuildFailed as error:
        return str(error)
    return None


def instructions() -> str:
    """What the library of this machine computes with, such as "avx2" or "avx512-vnni+amx".

    Raises: NativeBuildFailed.
    """
    return library().backend().decode()
