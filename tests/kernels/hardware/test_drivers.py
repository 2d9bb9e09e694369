"""What drivers answer, with the library or the tool replaced at its edge."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from kernels.hardware.drivers import (
    nvidia_family,
    read_nvidia_smi,
    read_nvml,
    read_torch,
    run_command,
    sysfs_address,
)


class NvmlError(Exception):
    pass


def fake_nvml(*, p2p_status=0, fails=False):
    """pynvml's functions over two devices."""

    def init():
        if fails:
            raise NvmlError("Driver Not Loaded")

    closed = []
    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_P2P_CAPS_INDEX_READ=0,
        NVML_P2P_STATUS_OK=0,
        nvmlInit=init,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: SimpleNamespace(index=index),
        nvmlDeviceGetName=lambda handle: b"NVIDIA L40S" if handle.index else "NVIDIA L40S",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(
            busId=f"0000000{handle.index}:C1:00.0".encode()
        ),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (8, 9),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=48_305_799_168),
        nvmlDeviceGetP2PStatus=lambda one, other, index: p2p_status,
        closed=closed,
    )


def test_nvml_names_devices_families_and_peers(monkeypatch):
    nvml = fake_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    report = read_nvml()
    assert [device.address for device in report.devices] == ["0000:c1:00.0", "0001:c1:00.0"]
    assert {device.name for device in report.devices} == {"NVIDIA L40S"}
    assert {device.family for device in report.devices} == {"sm_89"}
    assert report.devices[0].memory_bytes == 48_305_799_168
    assert report.p2p is True
    assert nvml.closed


def test_one_pair_that_cannot_reach_makes_peers_unreachable(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(p2p_status=3))
    assert read_nvml().p2p is False


def test_nvml_that_fails_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(fails=True))
    report = read_nvml()
    assert report.devices == ()
    assert report.notes == ("NVML: Driver Not Loaded",)


def test_nvml_that_is_absent_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml().notes == ("NVML: the module pynvml is not installed",)


def test_nvidia_smi_is_read_line_by_line():
    text = (
        "00000000:01:00.0, NVIDIA GeForce RTX 5090, 12.0, 32607\n"
        "00000000:02:00.0, NVIDIA GB10, 12.1, [N/A]\n"
    )
    report = read_nvidia_smi(lambda command: text)
    (device,) = report.devices
    assert (device.address, device.family) == ("0000:01:00.0", "sm_120")
    assert device.memory_bytes == 32607 * 1024 * 1024
    assert report.notes[0].startswith("nvidia-smi: cannot read the line '00000000:02:00.0")


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 20.0)],
)
def test_nvidia_smi_that_is_absent_or_hangs_says_so(error):
    def run(command):
        raise error

    report = read_nvidia_smi(run)
    assert report.devices == ()
    assert report.notes[0].startswith("nvidia-smi: ")


def test_a_command_returns_what_it_prints():
    assert run_command((sys.executable, "-c", "print('out')")) == "out\n"


def fake_torch(*properties, reach=True):
    cuda = SimpleNamespace(
        is_available=lambda: bool(properties),
        device_count=lambda: len(properties),
        get_device_properties=lambda index: properties[index],
        can_device_access_peer=lambda one, other: reach,
    )
    return SimpleNamespace(cuda=cuda)


def properties(index, **facts):
    place = {"pci_domain_id": 0, "pci_bus_id": 0xA0 + index, "pci_device_id": 0}
    size = {"total_memory": 1 << 37, "multi_processor_count": 304}
    return SimpleNamespace(name="card", **place, **size, **facts)


def test_torch_names_nvidia_families(monkeypatch):
    cards = [properties(i, major=10, minor=3) for i in range(2)]
    monkeypatch.setitem(sys.modules, "torch", fake_torch(*cards, reach=False))
    report = read_torch()
    assert [device.address for device in report.devices] == ["0000:a0:00.0", "0000:a1:00.0"]
    assert {device.family for device in report.devices} == {"sm_103"}
    assert report.p2p is False


def test_torch_names_amd_families_without_their_features(monkeypatch):
    card = properties(0, major=9, minor=4, gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setitem(sys.modules, "torch", fake_torch(card))
    report = read_torch()
    assert (report.devices[0].family, report.devices[0].num_sms) == ("gfx942", 304)
    assert report.p2p is None


def test_torch_without_devices_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    assert read_torch().notes == ("torch: sees no CUDA or HIP device",)


def test_names_of_families_and_addresses():
    assert nvidia_family(9, 0) == "sm_90"
    assert nvidia_family("12", "1") == "sm_121"
    assert sysfs_address("00000000:C1:00.0") == "0000:c1:00.0"
    assert sysfs_address("00010000:01:00.0") == "10000:01:00.0"
