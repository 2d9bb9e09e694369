"""Which device a rank has, what memory it plans with, and what is refused before a start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernels.collectives.communicator import join
from kernels.collectives.group import Group
from kernels.hardware.host_memory import MachineMemory
from llm_engine.config import EngineConfig
from llm_engine.device import EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.rank_device import (
    check_devices,
    devices_decision,
    least_memory,
    rank_device,
    rank_memory,
)

PAIR = PhaseLayouts.parse("tp2")


def config(device: str) -> EngineConfig:
    return EngineConfig(model="any", layout="tp2", device=device)


def test_ranks_without_devices_compute_on_the_processor() -> None:
    check_devices(config("cpu"), PAIR)
    device = rank_device(config("cpu"), 1)
    assert device == EngineDevice.of("cpu")
    assert devices_decision(PAIR, device) is None
    assert rank_memory(device, 4).total_bytes * 4 <= device.read_memory().total_bytes


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="this machine has devices for both")
def test_fewer_devices_than_ranks_are_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidConfig, match=r"for 2 ranks, each with a device .* sees [01]: give"):
        check_devices(config("cuda"), PAIR)


@pytest.mark.parametrize("check", [lambda c: check_devices(c, PAIR), lambda c: rank_device(c, 0)])
def test_one_device_is_not_for_several_ranks(check) -> None:
    with pytest.raises(InvalidConfig, match="every rank has a device of its own: ask for 'cuda'"):
        check(config("cuda:1"))


def test_the_ledger_names_each_ranks_device_and_the_idle_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    device = EngineDevice(torch.device("cuda", 0), EngineDevice.of("cpu").traits)
    decision = devices_decision(PAIR, device)
    assert decision is not None
    assert decision.chosen == "cuda:0, cuda:1"
    assert [rejection.candidate for rejection in decision.rejected] == ["cuda:2"]
    assert "unverified" in decision.evidence


def test_ranks_plan_with_the_least_of_their_devices(tmp_path: Path) -> None:
    """Total and available may be those of different ranks."""
    own = [MachineMemory(80, 70, "a device"), MachineMemory(90, 60, "a device")]

    def rank(index: int) -> MachineMemory:
        group = Group(rank=index, size=2, rendezvous=f"file://{tmp_path / 'store'}", timeout_s=30)
        comm = join(group, transports=("shm",))
        found = least_memory(comm, own[index])
        comm.close()
        return found

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(rank, range(2)))
    assert [(m.total_bytes, m.available_bytes) for m in found] == [(80, 60)] * 2
    assert "least of 2 ranks" in found[0].bound_by
