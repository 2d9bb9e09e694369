"""The present machine, and what could not be read about it, and why."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from kernels.hardware.drivers import (
    DriverDevice,
    DriverReport,
    read_nvidia_smi,
    read_nvml,
    read_torch,
)
from kernels.hardware.host import read_host
from kernels.hardware.machine import DeviceGroup, Host, Links, Machine
from kernels.hardware.pci import PciDevice, has_bus, read_pci_devices
from kernels.hardware.products import PeakRates, Product, product_by_pci_id
from kernels.hardware.traits import family_names, load_traits

Reader = Callable[[], DriverReport]

NAME = "this-machine"
DRIVER_READERS: tuple[Reader, ...] = (read_nvml, read_nvidia_smi, read_torch)
_NO_PEAKS = PeakRates(fp32=None, bf16=None, fp16=None, fp8=None, fp4=None, int8=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """The machine found, its accelerators on the bus, and what could not be read and why."""

    machine: Machine
    pci: tuple[PciDevice, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """One device that a plan can use, with its place."""

    product: Product
    pci: PciDevice | None


def detect(
    sys_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
    readers: Sequence[Reader] = DRIVER_READERS,
) -> Detected:
    """Look at the machine: bus, driver, processor.

    Readers are asked in turn until one knows devices, and only where the bus shows an
    accelerator or hides itself: a laptop pays for no driver and no torch. A device whose family
    no table holds is left out with a note. Without accelerators the processor is the one device.
    Units: rates are None: sysfs and drivers state none, and a probe has to measure them.
    """
    host, host_notes = read_host(proc_root, sys_root)
    pci, pci_notes = read_pci_devices(sys_root)
    is_asked = bool(pci) or not has_bus(sys_root)
    report = _first_answer(readers) if is_asked else DriverReport(source="none")
    found, device_notes = _devices(pci, report)
    link_notes = [] if not found else ["link rates: not measured"]
    if not found:
        device_notes.append("devices: no accelerator that lanewise knows; the processor is used")
        found = [_Found(_processor(host), None)]
    machine = _machine(host, found, _links(found, report))
    notes = (*host_notes, *pci_notes, *report.notes, *device_notes, *link_notes)
    return Detected(machine=machine, pci=pci, notes=notes)


def _first_answer(readers: Iterable[Reader]) -> DriverReport:
    """The first report that names devices, carrying the notes of those that did not."""
    notes: tuple[str, ...] = ()
    for reader in readers:
        report = reader()
        notes += report.notes
        if report.devices:
            return replace(report, notes=notes)
    return DriverReport(source="none", notes=notes)


def _devices(pci: Sequence[PciDevice], report: DriverReport) -> tuple[list[_Found], list[str]]:
    """Devices in order of address: bus and driver joined by it."""
    by_address = {device.address: device for device in report.devices}
    on_bus = {device.address: device for device in pci}
    found: list[_Found] = []
    notes: list[str] = []
    for address in sorted(by_address.keys() | on_bus.keys()):
        product = _product(on_bus.get(address), by_address.get(address), notes)
        if product is not None:
            found.append(_Found(product, on_bus.get(address)))
    return found, notes


def _product(
    pci: PciDevice | None, driver: DriverDevice | None, notes: list[str]
) -> Product | None:
    """What is known of one device: the driver's word before the data sheet's."""
    sheet = product_by_pci_id(pci.pci_id) if pci else None
    if driver is not None:
        return _product_of_driver(driver, sheet, notes)
    assert pci is not None
    if sheet is not None:
        notes.append(f"{pci.address}: no driver answered; figures of {sheet.name}'s data sheet")
        return sheet
    where = f"{pci.address} ({pci.vendor} {pci.pci_id})"
    notes.append(f"{where}: left out: no driver answered and no product has this id")
    return None


def _product_of_driver(
    driver: DriverDevice, sheet: Product | None, notes: list[str]
) -> Product | None:
    if driver.family not in family_names():
        notes.append(
            f"{driver.address} ({driver.name}): left out: its family {driver.family} is not "
            f"among {', '.join(family_names())}"
        )
        return None
    if sheet is not None and sheet.family == driver.family:
        num_sms = driver.num_sms or sheet.num_sms
        return replace(sheet, memory_bytes=driver.memory_bytes, num_sms=num_sms)
    notes.append(f"{driver.address} ({driver.name}): no data sheet in the table: rates not known")
    return Product(
        name=driver.name,
        family=driver.family,
        memory_bytes=driver.memory_bytes,
        memory_bandwidth_bytes_s=None,
        num_sms=driver.num_sms,
        peak=_NO_PEAKS,
        p2p=load_traits(driver.family).p2p,
        pci_ids=(),
        source="the driver",
    )


def _processor(host: Host) -> Product:
    return Product(
        name="processor",
        family=host.cpu_family,
        memory_bytes=host.memory_bytes,
        memory_bandwidth_bytes_s=host.memory_bandwidth_bytes_s,
        num_sms=host.num_cores,
        peak=_NO_PEAKS,
        p2p="no",
        pci_ids=(),
        source="procfs",
    )


def _links(found: Sequence[_Found], report: DriverReport) -> Links:
    classes = sorted({device.pci.link_class for device in found if device.pci})
    on_bus = any(device.pci for device in found)
    islands: dict[int | None, list[int]] = {}
    for index, device in enumerate(found):
        islands.setdefault(device.pci.numa_node if device.pci else None, []).append(index)
    return Links(
        link_class=classes[0] if len(classes) == 1 else ("unknown" if on_bus else "none"),
        p2p=_p2p(found, report),
        hop_bytes_s=None,
        cross_socket_bytes_s=None,
        host_bytes_s=None,
        staged_bytes_s=None,
        latency_s=None,
        islands=tuple(tuple(island) for island in islands.values()),
        source=f"sysfs; driver: {report.source}",
    )


def _p2p(found: Sequence[_Found], report: DriverReport) -> str:
    """The driver's word; else the products', where they agree; one device has no peer."""
    if len(found) == 1:
        return "no"
    if report.p2p is not None:
        return "yes" if report.p2p else "no"
    stated = {device.product.p2p for device in found}
    return stated.pop() if len(stated) == 1 else "unknown"


def _machine(host: Host, found: Sequence[_Found], links: Links) -> Machine:
    groups = tuple(
        DeviceGroup(count=len(list(same)), product=product)
        for product, same in groupby(device.product for device in found)
    )
    return Machine(
        name=NAME,
        description=", ".join(f"{group.count} x {group.product.name}" for group in groups),
        devices=groups,
        host=host,
        links=links,
        virtual=False,
        verified=all(load_traits(group.product.family).verified for group in groups),
        source="detected",
    )
