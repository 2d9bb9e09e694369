"""Accelerators on the PCI bus, as sysfs shows them: who they are and how they are linked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kernels.hardware.machine import LINK_CLASSES
from kernels.hardware.tables import read_table

_DEVICES = Path("bus/pci/devices")
VENDORS_FILE = Path(__file__).parent / "pci_vendors.toml"

# Transfer rates as sysfs prints them, slowest first, and the generation that brought each.
_GENERATIONS: Mapping[str, int] = MappingProxyType(
    {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
)
_RATES = tuple(_GENERATIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciVendor:
    """One vendor of the table: its only family, or None where the product decides."""

    vendor: str
    family: str | None
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One accelerator.

    Units: `rate_gt_s` as sysfs prints it, in GT/s per lane: what card and slot can both do, since
    an idle link reports less; widths in lanes. None where sysfs does not say.
    """

    address: str
    pci_id: str  # "10de:2b85"
    vendor: str
    family: str | None
    numa_node: int | None
    rate_gt_s: str | None
    width: int | None
    max_width: int | None

    @property
    def link_class(self) -> str:
        """The link as LINK_CLASSES names it, "unknown" where it has no name there."""
        generation = _GENERATIONS.get(self.rate_gt_s or "")
        name = f"pcie-gen{generation}-x{self.width}"
        return name if name in LINK_CLASSES else "unknown"


def load_pci_vendors() -> dict[str, PciVendor]:
    """The vendors lanewise knows, by PCI vendor id."""
    table = read_table(VENDORS_FILE)
    vendors: dict[str, PciVendor] = {}
    for vendor_id in table.remaining():
        row = table.table(vendor_id)
        family = row.text("family")
        vendors[vendor_id] = PciVendor(
            vendor=row.text("vendor"),
            family=None if family == "by-product" else family,
            classes=row.texts("classes"),
        )
        row.close()
    return vendors


def has_bus(sys_root: Path) -> bool:
    """Whether sysfs shows a PCI bus at all."""
    return (sys_root / _DEVICES).is_dir()


def read_pci_devices(sys_root: Path) -> tuple[tuple[PciDevice, ...], tuple[str, ...]]:
    """The accelerators in order of address, and a note for every fact that could not be read."""
    folder = sys_root / _DEVICES
    if not has_bus(sys_root):
        return (), (f"PCI devices: {folder} does not exist",)
    vendors = load_pci_vendors()
    found = [
        _read_device(path, vendors[vendor_id])
        for path in sorted(folder.iterdir())
        if (vendor_id := _hex(path / "vendor")) in vendors
        and _hex(path / "class")[:4] in vendors[vendor_id].classes
    ]
    return tuple(found), tuple(note for device in found for note in _link_notes(device))


def _read_device(path: Path, vendor: PciVendor) -> PciDevice:
    node = _word(path / "numa_node")
    return PciDevice(
        address=path.name,
        pci_id=f"{_hex(path / 'vendor')}:{_hex(path / 'device')}",
        vendor=vendor.vendor,
        family=vendor.family,
        numa_node=int(node) if node.isdigit() else None,
        rate_gt_s=_usable_rate(path),
        width=_lanes(path / "current_link_width"),
        max_width=_lanes(path / "max_link_width"),
    )


def _usable_rate(path: Path) -> str | None:
    """The slower of what the card and the port above it can do."""
    ends = (path, path.resolve().parent)
    rates = [_word(end / "max_link_speed") for end in ends]
    known = [rate for rate in rates if rate in _GENERATIONS]
    return min(known, key=_RATES.index) if known else None


def _link_notes(device: PciDevice) -> list[str]:
    notes: list[str] = []
    if device.rate_gt_s is None or device.width is None:
        notes.append(f"link of {device.address}: sysfs states no rate or no width")
    elif device.max_width is not None and device.width < device.max_width:
        notes.append(
            f"link of {device.address}: runs at x{device.width} of x{device.max_width}: "
            "a slot with fewer lanes, or a bad contact"
        )
    if device.numa_node is None:
        notes.append(f"NUMA node of {device.address}: sysfs does not say")
    return notes


def _word(file: Path) -> str:
    """The first word of a file, empty where it cannot be read; sysfs files may refuse."""
    try:
        words = file.read_text("utf-8", errors="replace").split()
    except OSError:
        return ""
    return words[0] if words else ""


def _hex(file: Path) -> str:
    return _word(file).removeprefix("0x")


def _lanes(file: Path) -> int | None:
    """A width; sysfs prints 0 or 255 for a device without a link."""
    word = _word(file)
    return int(word) if word in ("1", "2", "4", "8", "12", "16", "32") else None
