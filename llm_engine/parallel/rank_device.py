"""The device of each rank: one of its own where the model is computed on devices."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.collectives.protocol import Communicator
from kernels.hardware.host_memory import MachineMemory
from kernels.ledger import Decision, Rejection
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.device import CPU, EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import PhaseLayouts

_EVIDENCE = (
    "unverified on devices: their ranks ran over tensors that only say they are on one, and with "
    "kernels in Triton's interpreter"
)


def rank_device(config: EngineConfig, rank: int) -> EngineDevice:
    """The CPU, or of the devices that the process sees the one with the rank's number.

    Raises: InvalidConfig for one device among ranks, and for a number that torch does not see.
    """
    _check_name(config)
    return EngineDevice.of(CPU if config.device == CPU else f"{config.device}:{rank}")


def check_devices(config: EngineConfig, layouts: PhaseLayouts) -> None:
    """Raises: InvalidConfig for fewer devices than ranks, or devices that differ."""
    _check_name(config)
    if config.device == CPU:
        return
    num_ranks, found = layouts.num_ranks, torch.cuda.device_count()
    if found < num_ranks:
        raise InvalidConfig(
            f"layout {layouts} is for {num_ranks} ranks, each with a device of its own, but torch "
            f"{torch.__version__} sees {found}: give it as many (LANEWISE_LLM_DEVICES), or ask for "
            "a layout of fewer ranks"
        )
    families = [rank_device(config, rank).traits.name for rank in range(num_ranks)]
    if len(set(families)) > 1:
        raise InvalidConfig(
            f"layout {layouts}: its ranks would compute on {', '.join(families)}, whose kernels "
            "and precisions differ: give it devices of one family"
        )


def _check_name(config: EngineConfig) -> None:
    kind, colon, _ = config.device.partition(":")
    if colon:
        raise InvalidConfig(
            f"device is {config.device!r} and layout {config.layout!r}, but every rank has a "
            f"device of its own: ask for {kind!r}, and show the process those that it may have"
        )


def devices_decision(layouts: PhaseLayouts, device: EngineDevice) -> Decision | None:
    """Which rank computes where, for the ledger; None on the CPU."""
    if device.place.type == CPU:
        return None
    used = [f"{device.place.type}:{rank}" for rank in range(layouts.num_ranks)]
    idle = [f"{device.place.type}:{i}" for i in range(len(used), torch.cuda.device_count())]
    reason = f"layout {layouts} has {len(used)} ranks, of which none computes there"
    return Decision(
        kind="layout",
        where="llm engine, ranks",
        what="devices",
        asked="auto",
        chosen=", ".join(used),
        tier=Tier.VENDOR,
        source="default",
        reasons=("the rank's number among the devices that the process sees",),
        rejected=tuple(Rejection(candidate=name, reasons=(reason,)) for name in idle),
        evidence=_EVIDENCE,
    )


def rank_memory(device: EngineDevice, num_ranks: int) -> MachineMemory:
    """What a rank may plan with: its own device's memory, or its part of the host's."""
    memory = device.read_memory()
    return memory if device.place.type != CPU else part_of(memory, num_ranks)


def part_of(memory: MachineMemory, num_ranks: int) -> MachineMemory:
    """One rank's part of the memory that the ranks of a host have together."""
    return replace(
        memory,
        total_bytes=memory.total_bytes // num_ranks,
        available_bytes=memory.available_bytes // num_ranks,
        bound_by=f"{memory.bound_by}, over {num_ranks} ranks",
    )


def least_memory(communicator: Communicator, own: MachineMemory) -> MachineMemory:
    """The least of all ranks' devices, the same on each: caches have one size on all of them.

    All ranks call this at the same time. Raises: as the communicator.
    """
    figures = torch.tensor([-own.total_bytes, -own.available_bytes], dtype=torch.int64)
    total, available = (-figure for figure in communicator.all_reduce(figures, reduction="max"))
    bound_by = f"{own.bound_by}; the least of {communicator.group.size} ranks' devices"
    return MachineMemory(int(total), int(available), bound_by)
