"""A machine as planners see it: devices, host, links. Real or virtual, the same record."""

from dataclasses import dataclass
from pathlib import Path

from kernels.hardware.errors import UnknownName
from kernels.hardware.products import Product, load_product, parse_product
from kernels.hardware.quantity import BYTES, BYTES_PER_S, SECONDS
from kernels.hardware.tables import Table, names_in, read_table
from kernels.hardware.traits import P2P, DeviceTraits, family_names, load_traits

MACHINES = Path(__file__).parent / "machines"
LINK_CLASSES = (
    "none",
    "pcie-gen3-x16",
    "pcie-gen4-x8",
    "pcie-gen4-x16",
    "pcie-gen5-x8",
    "pcie-gen5-x16",
    "hccs",
    "unknown",
)
_MAX_DEVICES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """`count` devices of one product."""

    count: int
    product: Product


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The processors and the memory around the devices.

    Units: bytes, bytes per second; `cpu_family` names a row of the families table.
    """

    cpu_family: str
    num_cores: int
    num_numa_nodes: int
    memory_bytes: int
    memory_bandwidth_bytes_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """How the devices reach each other and the host.

    Units: bytes per second, one way, of one device; seconds. None where nobody has told or
    measured it. `islands` groups device indices by socket or switch; one island means no crossing.
    """

    link_class: str  # of LINK_CLASSES
    p2p: str  # yes, no, unknown
    hop_bytes_s: float | None  # between two devices of one island, peer to peer
    cross_socket_bytes_s: float | None  # between islands, all devices sending at once
    host_bytes_s: float | None  # device to or from pinned host memory
    staged_bytes_s: float | None  # between two devices through host memory, all sending at once
    latency_s: float | None  # of one small message between devices
    islands: tuple[tuple[int, ...], ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything a plan needs to know about a machine.

    Invariants: at least one device (a CPU is one); islands name every device once; `virtual` says
    that the record describes hardware that need not be there; `verified` that lanewise has run on
    exactly such a machine.
    """

    name: str
    description: str
    devices: tuple[DeviceGroup, ...]
    host: Host
    links: Links
    virtual: bool
    verified: bool
    source: str

    @property
    def num_devices(self) -> int:
        """How many devices there are, of all products."""
        return sum(group.count for group in self.devices)

    @property
    def products(self) -> tuple[Product, ...]:
        """The product of each device, by device index."""
        return tuple(group.product for group in self.devices for _ in range(group.count))

    @property
    def families(self) -> tuple[str, ...]:
        """The families present, each once, in device order."""
        return tuple(dict.fromkeys(group.product.family for group in self.devices))

    @property
    def traits(self) -> tuple[DeviceTraits, ...]:
        """The row of each family present, in the order of `families`."""
        return tuple(load_traits(family) for family in self.families)


def machine_names() -> tuple[str, ...]:
    """Every machine there is a file for, sorted."""
    return names_in(MACHINES)


def load_machine(name_or_file: str | Path) -> Machine:
    """The machine of that name in the package, or the one that a TOML file describes.

    A string is a file when it ends in ".toml", else a name.
    Raises: UnknownName with the names available; MalformedFile naming file, key and bound.
    """
    is_file = isinstance(name_or_file, Path) or name_or_file.endswith(".toml")
    file = Path(name_or_file) if is_file else MACHINES / f"{name_or_file}.toml"
    if not (file.is_file() if is_file else name_or_file in machine_names()):
        raise UnknownName("machine", str(name_or_file), (*machine_names(), "or a .toml file"))
    return parse_machine(read_table(file))


def parse_machine(table: Table) -> Machine:
    """A machine from its table; every key must be there.

    Raises: MalformedFile, also where islands do not name every device once.
    """
    machine = Machine(
        name=table.text("name"),
        description=table.text("description"),
        virtual=table.flag("virtual"),
        verified=table.flag("verified"),
        source=table.text("source"),
        devices=tuple(_parse_group(row) for row in table.rows("devices")),
        host=_parse_host(table.table("host")),
        links=_parse_links(table.table("links")),
    )
    table.close()
    named = sorted(index for island in machine.links.islands for index in island)
    if named != list(range(machine.num_devices)):
        raise table.fail(
            "links.islands",
            f"{machine.links.islands} must name each device from 0 to "
            f"{machine.num_devices - 1} exactly once",
        )
    return machine


def _parse_group(table: Table) -> DeviceGroup:
    count = table.count("count", 1, _MAX_DEVICES)
    if table.is_table("product"):
        product = parse_product(table.table("product"))
    else:
        product = load_product(table.text("product"))
    table.close()
    return DeviceGroup(count=count, product=product)


def _parse_host(table: Table) -> Host:
    host = Host(
        cpu_family=table.choice("cpu_family", family_names()),
        num_cores=table.count("num_cores", 1, 8192),
        num_numa_nodes=table.count("num_numa_nodes", 1, 256),
        memory_bytes=int(table.quantity("memory", BYTES)),
        memory_bandwidth_bytes_s=table.quantity_or_unknown("memory_bandwidth", BYTES_PER_S),
    )
    table.close()
    return host


def _parse_links(table: Table) -> Links:
    links = Links(
        link_class=table.choice("link_class", LINK_CLASSES),
        p2p=table.choice("p2p", P2P),
        hop_bytes_s=table.quantity_or_unknown("hop", BYTES_PER_S),
        cross_socket_bytes_s=table.quantity_or_unknown("cross_socket", BYTES_PER_S),
        host_bytes_s=table.quantity_or_unknown("host", BYTES_PER_S),
        staged_bytes_s=table.quantity_or_unknown("staged", BYTES_PER_S),
        latency_s=table.quantity_or_unknown("latency", SECONDS),
        islands=_parse_islands(table),
        source=table.text("source"),
    )
    table.close()
    return links


def _parse_islands(table: Table) -> tuple[tuple[int, ...], ...]:
    islands = table.lists_of_counts("islands")
    if not islands or not all(islands):
        raise table.fail("islands", "must hold at least one island, none of them empty")
    return islands
