"""What drivers say about the devices they run: NVML, nvidia-smi, torch. Each may be absent."""

import importlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 20.0
_QUERY = "pci.bus_id,name,compute_cap,memory.total"

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDevice:
    """One device as its driver describes it. Units: bytes; None where the driver does not say."""

    address: str  # as sysfs writes it: "0000:01:00.0"
    name: str
    family: str
    memory_bytes: int
    num_sms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """Everything one source told: devices, whether all reach all (None: not asked), notes."""

    source: str
    devices: tuple[DriverDevice, ...] = ()
    p2p: bool | None = None
    notes: tuple[str, ...] = ()


def read_nvml() -> DriverReport:
    """NVIDIA's management library, through pynvml where that is installed."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return DriverReport(source="NVML", notes=("NVML: the module pynvml is not installed",))
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return DriverReport(source="NVML", notes=(f"NVML: {error}",))
    try:
        return _query_nvml(nvml)
    except nvml.NVMLError as error:
        return DriverReport(source="NVML", notes=(f"NVML: {error}",))
    finally:
        nvml.nvmlShutdown()


def _query_nvml(nvml: Any) -> DriverReport:  # noqa: ANN401 - a module without types
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    devices = tuple(_nvml_device(nvml, handle) for handle in handles)
    pairs = [(a, b) for a in handles for b in handles if a is not b]
    reads = [nvml.nvmlDeviceGetP2PStatus(a, b, nvml.NVML_P2P_CAPS_INDEX_READ) for a, b in pairs]
    reach_all = all(status == nvml.NVML_P2P_STATUS_OK for status in reads) if pairs else None
    return DriverReport(source="NVML", devices=devices, p2p=reach_all)


def _nvml_device(nvml: Any, handle: Any) -> DriverDevice:  # noqa: ANN401
    name = nvml.nvmlDeviceGetName(handle)
    bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
    return DriverDevice(
        address=sysfs_address(_decoded(bus_id)),
        name=_decoded(name),
        family=nvidia_family(*nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        num_sms=None,
    )


def _decoded(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def run_command(command: Sequence[str]) -> str:
    """The standard output of `command`.

    Raises: OSError if it is not installed; subprocess.SubprocessError if it fails or hangs.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    return done.stdout


def read_nvidia_smi(run: Run = run_command) -> DriverReport:
    """NVIDIA's command-line tool."""
    command = ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    try:
        text = run(command)
    except (OSError, subprocess.SubprocessError) as error:
        return DriverReport(source="nvidia-smi", notes=(f"nvidia-smi: {error}",))
    devices: list[DriverDevice] = []
    notes: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match [field.strip() for field in line.split(",")]:
            case [bus_id, name, capability, memory_mib] if memory_mib.isdigit():
                devices.append(
                    DriverDevice(
                        address=sysfs_address(bus_id),
                        name=name,
                        family=nvidia_family(*capability.split(".")),
                        memory_bytes=int(memory_mib) << 20,
                        num_sms=None,
                    )
                )
            case _:
                notes.append(f"nvidia-smi: cannot read the line {line!r}")
    return DriverReport(source="nvidia-smi", devices=tuple(devices), notes=tuple(notes))


def read_torch() -> DriverReport:
    """The view that torch has of its CUDA or HIP devices; imports torch, which takes seconds."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        return DriverReport(source="torch", notes=(f"torch: {error}",))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return DriverReport(source="torch", notes=("torch: sees no CUDA or HIP device",))
    devices = tuple(_torch_device(torch.cuda.get_device_properties(i)) for i in range(count))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    reach_all = all(torch.cuda.can_device_access_peer(a, b) for a, b in pairs) if pairs else None
    return DriverReport(source="torch", devices=devices, p2p=reach_all)


def _torch_device(properties: Any) -> DriverDevice:  # noqa: ANN401 - a class without types
    hip = getattr(properties, "gcnArchName", "").partition(":")[0]
    bus = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    is_hip = hip.startswith("gfx")
    return DriverDevice(
        address="{:04x}:{:02x}:{:02x}.0".format(*bus),
        name=properties.name,
        family=hip if is_hip else nvidia_family(properties.major, properties.minor),
        memory_bytes=properties.total_memory,
        num_sms=properties.multi_processor_count,
    )


def nvidia_family(*capability: int | str) -> str:
    """The name of a family from its two capability numbers: 12, 0 gives "sm_120"."""
    return "sm_" + "".join(str(number) for number in capability)


def sysfs_address(bus_id: str) -> str:
    """NVIDIA's "00000000:01:00.0" as sysfs writes it."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
