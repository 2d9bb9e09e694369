"""Tensors that say they are on a device and are computed by the CPU: what mixes the two is found.

Torch makes tensors on devices that are not there while its mode for fakes is on; those here hold
real values too. Under `on_devices` an operation on tensors of two places raises `Mixed`, and
every value that the host reads of a device is noted with the function that reads it. In inference
mode alone: there torch asks for every copy, before it looks where a tensor is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from kernels.collectives.calls import Contract, Reduction
from kernels.collectives.protocol import Communicator
from kernels.hardware.host_memory import MachineMemory, read_machine_memory
from kernels.runtime import device_traits
from llm_engine.device import EngineDevice

CPU = torch.device("cpu")
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")
# What hands values to the host, or a result whose size follows from values.
_READS = (
    "aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select",
    "aten::unique_consecutive", "aten::_unique2", "aten::is_nonzero",
)  # fmt: skip
_PACKAGE = f"{Path(__file__).parents[3] / 'llm_engine'}/"


class Mixed(AssertionError):
    """Tensors of several places meet in one operation."""


class Reads:
    """Where the host read values of a device, as file and function."""

    def __init__(self) -> None:
        self.places: set[str] = set()

    def note(self) -> None:
        frame: Any = sys._getframe()
        while frame is not None and not _is_named(frame.f_code):
            frame = frame.f_back
        if frame is not None:
            code = frame.f_code
            self.places.add(f"{code.co_filename.removeprefix(_PACKAGE)}:{code.co_name}")


def _is_named(code: Any) -> bool:
    """Whether code is a function of the engine, and no part of one."""
    return code.co_filename.startswith(_PACKAGE) and not code.co_name.startswith("<")


class _Thread(threading.local):
    in_kernel = False
    reads: Reads | None = None


_thread = _Thread()


class Pretend(torch.Tensor):
    """Values of the CPU that say they are at `place`."""

    values_: torch.Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, real: torch.Tensor, place: torch.device) -> Pretend:
        with _disable_current_modes():
            room = real.untyped_storage().nbytes() // real.element_size()
            shape = real.size(), real.stride(), real.storage_offset()
            meta = torch.empty(room, dtype=real.dtype, device="meta").as_strided(*shape)
            made: Any = torch.Tensor._make_subclass(
                cls, meta, False, dispatch_device=True, device_for_backend_keys=place
            )
        made.values_, made.place = real, place
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    def tolist(self) -> Any:  # type: ignore[override]
        if not _thread.in_kernel and _thread.reads is not None:
            _thread.reads.note()
        with _disable_current_modes():
            return self.values_.tolist()

    def data_ptr(self) -> int:
        return self.values_.data_ptr()

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"Pretend({self.values_!r} at {self.place})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carry_out(func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carry_out(func, args, kwargs or {})


def _carry_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat, spec = tree_flatten((args, kwargs))
    held = [x for x in flat if isinstance(x, Pretend)]
    name, places = func._schema.name, {x.place for x in held}
    plain = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, Pretend)]
    asked = next((x for x in flat if isinstance(x, torch.device)), None)
    home = args[:1] if name == "aten::copy_" else held  # whose place the result has
    target = next((x.place for x in home if isinstance(x, Pretend)), CPU)
    target = target if asked is None else asked
    is_mixed = len(places) > 1 or (held and any(x.dim() for x in plain))
    if is_mixed and name not in _COPIES and not _thread.in_kernel:
        raise Mixed(f"{name} over {[(tuple(x.shape), x.device) for x in (*held, *plain)]}")
    is_read = name in _READS or (name in _COPIES and target == CPU)
    if held and is_read and not _thread.in_kernel and _thread.reads is not None:
        _thread.reads.note()
    owners = {id(x.values_): x for x in held}

    def real(x: Any) -> Any:
        return x.values_ if isinstance(x, Pretend) else CPU if isinstance(x, torch.device) else x

    real_args, real_kwargs = tree_unflatten([real(x) for x in flat], spec)
    real_kwargs.pop("pin_memory", None)  # of memory that a device would copy from
    with _disable_current_modes():
        found = func(*real_args, **real_kwargs)

    def placed(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or target == CPU:
            return x
        return owners[id(x)] if id(x) in owners else Pretend(x, target)

    return tree_map(placed, found)


@contextmanager
def on_devices(reads: Reads) -> Iterator[None]:
    """Torch's devices need not be there in this thread; what the host reads is noted."""
    assert torch.is_inference_mode_enabled(), "copies to the host would not be seen"
    _thread.reads = reads
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _Mode():
            yield
    finally:
        _thread.reads = None


@contextmanager
def lifted() -> Iterator[None]:
    """Around all threads of `on_devices`: torch makes tensors of numbers on the CPU, then moves."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


def as_kernel(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A reference as if it were a kernel: its arguments are all on the device, the rest its own."""

    def run(*args: Any, **kwargs: Any) -> Any:
        given = list(_tensors((args, kwargs)))
        if not all(isinstance(x, Pretend) for x in given):
            raise Mixed(f"{name} is given {[(tuple(x.shape), x.device) for x in given]}")
        _thread.in_kernel = True
        try:
            return function(*args, **kwargs)
        finally:
            _thread.in_kernel = False

    return run


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _tensors(each)


def with_kernels(ops: Any) -> Any:
    """Bound ops whose implementations count as kernels."""
    names = ["rms_norm", "swiglu", "rotary_insert", "paged_prefill", "paged_decode"]
    names += [] if ops.moe_router is None else ["moe_router"]
    return replace(ops, **{name: as_kernel(name, getattr(ops, name)) for name in names})


class PretendDevice(EngineDevice):
    """A rank's device that is not there: the CPU's ops over tensors that say they are on it."""

    @classmethod
    def numbered(cls, index: int) -> PretendDevice:
        return cls(torch.device("cuda", index), device_traits("cpu"))

    @property
    def read_memory(self) -> Callable[[], MachineMemory]:
        return read_machine_memory

    def use(self) -> None:
        """Nothing is launched."""

    def wait(self) -> None:
        """Nothing runs elsewhere."""


class PretendRanks:
    """A communicator of the host that also moves such tensors, each rank's from its place."""

    def __init__(self, inner: Communicator, place: torch.device) -> None:
        self._inner, self._place = inner, place

    @property
    def group(self) -> Any:
        return self._inner.group

    def all_reduce(
        self, x: torch.Tensor, *, contract: Contract = "exact", reduction: Reduction = "sum"
    ) -> torch.Tensor:
        with _disable_current_modes():
            real = self._real(x)
            real.copy_(self._inner.all_reduce(real, contract=contract, reduction=reduction))
        return x

    def reduce_scatter(self, x: torch.Tensor, sizes: Any = None, **how: Any) -> torch.Tensor:
        with _disable_current_modes():
            return self._like(x, self._inner.reduce_scatter(self._real(x), sizes, **how))

    def all_gather(self, x: torch.Tensor, **how: Any) -> torch.Tensor:
        with _disable_current_modes():
            return self._like(x, self._inner.all_gather(self._real(x), **how))

    def all_to_all(self, x: torch.Tensor, sizes: Any, **how: Any) -> tuple[torch.Tensor, list[int]]:
        with _disable_current_modes():
            found, counts = self._inner.all_to_all(self._real(x), sizes, **how)
            return self._like(x, found), counts

    def broadcast(self, x: torch.Tensor, root: int = 0, **how: Any) -> torch.Tensor:
        with _disable_current_modes():
            self._inner.broadcast(self._real(x), root, **how)
        return x

    def send(self, x: torch.Tensor, to: int) -> None:
        with _disable_current_modes():
            self._inner.send(self._real(x), to)

    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        with _disable_current_modes():
            self._inner.receive(self._real(x), source)
        return x

    def swap(self, out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> torch.Tensor:
        with _disable_current_modes():
            self._inner.swap(self._real(out), to, self._real(into), source)
        return into

    def barrier(self, timeout_s: float | None = None) -> None:
        self._inner.barrier(timeout_s)

    def start(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        return self._inner.start(operation, *args, **kwargs)

    def close(self) -> None:
        self._inner.close()

    def _real(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, Pretend):
            return x
        if x.place != self._place:
            raise Mixed(f"a rank of {self._place} sends a tensor at {x.place}")
        return x.values_

    def _like(self, x: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return Pretend(found, self._place) if isinstance(x, Pretend) else found
