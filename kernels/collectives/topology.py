"""How the devices of a machine are joined, as data: read, or told by a machine file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels.hardware.detect import DRIVER_READERS, Reader, detect
from kernels.hardware.machine import Machine
from kernels.table_file import fingerprint_of
from kernels.tuned import running_versions

# Counts up when algorithms change so that what was measured no longer holds.
LAYER_VERSION = "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What decides how fast ranks can talk; no serial numbers, so that equal machines are equal.

    Units: bytes per second, one way; seconds. None is what nobody told or measured. `links` are
    the devices' links in order ("pcie-gen4-x16 on NUMA node 0"); `islands` the runs of devices
    that share a switch or socket.
    """

    devices: tuple[str, ...]
    links: tuple[str, ...]
    p2p: str
    islands: tuple[tuple[int, ...], ...]
    cpu_family: str
    num_cores: int
    num_numa_nodes: int
    hop_bytes_s: float | None
    cross_bytes_s: float | None
    host_bytes_s: float | None
    staged_bytes_s: float | None
    dram_bytes_s: float | None
    latency_s: float | None
    versions: Mapping[str, str]
    is_virtual: bool
    source: str

    def facts(self) -> dict[str, Any]:
        """What a fingerprint covers: everything but rates, which are measured, and the source."""
        left_out = {"source", "is_virtual"}
        rates = {name for name in self.__slots__ if name.endswith(("_bytes_s", "latency_s"))}
        kept = {k: v for k, v in asdict(self).items() if k not in left_out | rates}
        return json.loads(json.dumps(kept | {"layer_version": LAYER_VERSION}, sort_keys=True))

    @property
    def fingerprint(self) -> str:
        """A digest of the facts."""
        return fingerprint_of(self.facts())


def topology_of(machine: Machine, device_links: Sequence[str] | None = None) -> Topology:
    """The topology of a machine, virtual or detected.

    `device_links` are what is known of each device's link; without them all have the machine's.
    """
    links = machine.links
    same = [links.link_class] * machine.num_devices
    return Topology(
        devices=tuple(product.name for product in machine.products),
        links=tuple(device_links or same),
        p2p=links.p2p,
        islands=links.islands,
        cpu_family=machine.host.cpu_family,
        num_cores=machine.host.num_cores,
        num_numa_nodes=machine.host.num_numa_nodes,
        hop_bytes_s=links.hop_bytes_s,
        cross_bytes_s=links.cross_socket_bytes_s,
        host_bytes_s=links.host_bytes_s,
        staged_bytes_s=links.staged_bytes_s,
        dram_bytes_s=machine.host.memory_bandwidth_bytes_s,
        latency_s=links.latency_s,
        versions=dict(running_versions()),
        is_virtual=machine.virtual,
        source=links.source,
    )


def this_topology(
    sys_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
    readers: Sequence[Reader] = DRIVER_READERS,
) -> Topology:
    """The present machine: bus and NUMA from sysfs, devices and peer access from their driver.

    Link widths are those that sysfs shows now. Rates are None until a probe measures them.
    """
    found = detect(sys_root, proc_root, readers)
    links = [
        f"{device.link_class} on NUMA node {device.numa_node}"
        for device in found.pci
        if len(found.pci) == found.machine.num_devices
    ]
    return topology_of(found.machine, links or None)
