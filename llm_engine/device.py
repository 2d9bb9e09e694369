"""The device of an engine: where its tensors lie, what its kind can do, what memory it has."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from kernels.dtypes import DTYPE_NAMES
from kernels.hardware.errors import UnknownName
from kernels.hardware.host_memory import MachineMemory, read_machine_memory
from kernels.hardware.products import load_product, product_names
from kernels.hardware.traits import DeviceTraits
from kernels.runtime import device_traits
from llm_engine.errors import InvalidConfig
from llm_engine.memory.peak import peak_bytes

Numbers = Sequence[float] | Sequence[Sequence[int]]

CPU, ACCELERATOR = "cpu", "cuda"  # torch calls AMD's devices "cuda" too
# The processor's memory is shared with all other programs, a device's with none that count.
_DEVICE_CACHE_SHARE = 0.97
_USUAL_OPERATIONS_PER_BYTE = 120.0  # of matrix units on 16 bits: the tables have 100 to 300


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """Tensors are on `place`; kernels are chosen by `traits`.

    The two differ where a device's kernels run in Triton's interpreter, over tensors of the CPU.
    """

    place: torch.device
    traits: DeviceTraits

    @classmethod
    def of(cls, name: str) -> Self:
        """The device of torch's name: "cpu", "cuda" or "cuda:1".

        Raises: InvalidConfig for a device that torch does not see, or of an unknown family.
        """
        place = torch.device(name)
        if place.type == CPU:
            return cls(place, device_traits(CPU))
        found, index = torch.cuda.device_count(), place.index or 0
        if index >= found:
            raise InvalidConfig(
                f"device is {name!r}, but torch {torch.__version__} sees {found} such devices: "
                "name one that is there, install torch's build for it, or leave device out for "
                "the CPU"
            )
        try:
            traits = device_traits(ACCELERATOR, index)
        except UnknownName as error:
            raise InvalidConfig(
                f"device is {name!r}, of a family that no table has: {error}"
            ) from error
        return cls(torch.device(ACCELERATOR, index), traits)

    @property
    def is_cpu(self) -> bool:
        """Whether the processor's own kernels compute."""
        return self.traits.kind == CPU

    @property
    def evidence(self) -> str:
        """What is known about answers computed here."""
        if self.is_cpu:
            return "run on CPU; answers compared with transformers"
        return (
            "unverified on a device: its kernels ran in Triton's interpreter, where answers were "
            "compared with transformers"
        )

    @property
    def cache_share(self) -> float | None:
        """The part of the memory left that the cache takes at once; None: it grows by need."""
        return None if self.place.type == CPU else _DEVICE_CACHE_SHARE

    def operations_per_byte(self, dtype: torch.dtype) -> float | None:
        """What the device does while it reads a byte, from data sheets; None for a CPU.

        The middle of the products of its family; a usual figure where no table has one.
        """
        if self.is_cpu:
            return None
        known = [
            peak / product.memory_bandwidth_bytes_s
            for product in map(load_product, product_names())
            if product.family == self.traits.name and product.memory_bandwidth_bytes_s
            for peak in (getattr(product.peak, DTYPE_NAMES[dtype]),)
            if peak
        ]
        return statistics.median(known) if known else _USUAL_OPERATIONS_PER_BYTE

    @property
    def read_memory(self) -> Callable[[], MachineMemory]:
        """How to ask for the memory that weights and cache are taken from."""
        return read_machine_memory if self.place.type == CPU else self._device_memory

    def peak_bytes(self, run: Callable[[], object]) -> int | None:
        """What `run` added at its peak to what was held before; None where it is not known."""
        if self.place.type == CPU:
            return peak_bytes(run)
        torch.cuda.synchronize(self.place)
        torch.cuda.reset_peak_memory_stats(self.place)
        before = torch.cuda.memory_allocated(self.place)
        run()
        torch.cuda.synchronize(self.place)
        return torch.cuda.max_memory_allocated(self.place) - before

    def use(self) -> None:
        """Launch the calling thread's kernels here: Triton takes the thread's current device."""
        if self.place.type != CPU:
            torch.cuda.set_device(self.place)

    def wait(self) -> None:
        """Return once all that was asked of the device is done."""
        if self.place.type != CPU:
            torch.cuda.synchronize(self.place)

    def _device_memory(self) -> MachineMemory:
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.place)
        # What torch has taken and does not use is as good as free.
        kept_bytes = torch.cuda.memory_reserved(self.place) - torch.cuda.memory_allocated(
            self.place
        )
        return MachineMemory(total_bytes, free_bytes + kept_bytes, f"the memory of {self.place}")


def upload(values: Numbers, dtype: torch.dtype, place: torch.device) -> torch.Tensor:
    """Numbers that the host has made, on a device."""
    return torch.tensor(values, dtype=dtype).to(place)
