"""A machine as the TOML that `load_machine` reads back: every fact inline, nothing rounded."""

import json
from collections.abc import Sequence
from dataclasses import fields

from kernels.hardware.machine import DeviceGroup, Host, Links, Machine
from kernels.hardware.products import PeakRates, Product
from kernels.hardware.quantity import (
    BYTES,
    BYTES_PER_S,
    FLOPS,
    SECONDS,
    Dimension,
    format_quantity,
)
from kernels.hardware.tables import UNKNOWN


def dump_machine(machine: Machine) -> str:
    """The text of a machine file; loading it gives an equal Machine."""
    head = [
        f"name = {_string(machine.name)}",
        f"description = {_string(machine.description)}",
        f"virtual = {_flag(machine.virtual)}",
        f"verified = {_flag(machine.verified)}",
        f"source = {_string(machine.source)}",
    ]
    groups = [line for group in machine.devices for line in _group(group)]
    return "\n".join([*head, *groups, *_host(machine.host), *_links(machine.links), ""])


def _group(group: DeviceGroup) -> list[str]:
    return ["", "[[devices]]", f"count = {group.count}", *_product(group.product)]


def _product(product: Product) -> list[str]:
    return [
        "[devices.product]",
        f"name = {_string(product.name)}",
        f"family = {_string(product.family)}",
        f"memory = {_quantity(product.memory_bytes, BYTES)}",
        f"memory_bandwidth = {_quantity(product.memory_bandwidth_bytes_s, BYTES_PER_S)}",
        f"num_sms = {_string(UNKNOWN) if product.num_sms is None else product.num_sms}",
        f"p2p = {_string(product.p2p)}",
        f"pci_ids = {_strings(product.pci_ids)}",
        f"source = {_string(product.source)}",
        "[devices.product.peak]",
        *(f"{f.name} = {_quantity(getattr(product.peak, f.name), FLOPS)}" for f in _PEAKS),
    ]


def _host(host: Host) -> list[str]:
    return [
        "",
        "[host]",
        f"cpu_family = {_string(host.cpu_family)}",
        f"num_cores = {host.num_cores}",
        f"num_numa_nodes = {host.num_numa_nodes}",
        f"memory = {_quantity(host.memory_bytes, BYTES)}",
        f"memory_bandwidth = {_quantity(host.memory_bandwidth_bytes_s, BYTES_PER_S)}",
    ]


def _links(links: Links) -> list[str]:
    return [
        "",
        "[links]",
        f"link_class = {_string(links.link_class)}",
        f"p2p = {_string(links.p2p)}",
        f"hop = {_quantity(links.hop_bytes_s, BYTES_PER_S)}",
        f"cross_socket = {_quantity(links.cross_socket_bytes_s, BYTES_PER_S)}",
        f"host = {_quantity(links.host_bytes_s, BYTES_PER_S)}",
        f"staged = {_quantity(links.staged_bytes_s, BYTES_PER_S)}",
        f"latency = {_quantity(links.latency_s, SECONDS)}",
        f"islands = {[list(island) for island in links.islands]}",
        f"source = {_string(links.source)}",
    ]


_PEAKS = fields(PeakRates)


def _quantity(value: float | None, dimension: Dimension) -> str:
    return _string(UNKNOWN if value is None else format_quantity(value, dimension))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _strings(values: Sequence[str]) -> str:
    return f"[{', '.join(_string(value) for value in values)}]"


def _string(value: str) -> str:
    """A TOML basic string: JSON's escapes, and DEL, which JSON leaves bare and TOML forbids."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
