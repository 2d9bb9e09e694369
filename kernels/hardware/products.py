"""What one product of a family has: memory, rates, peaks. Facts of data sheets, dense."""

from dataclasses import dataclass, fields
from pathlib import Path

from kernels.hardware.quantity import BYTES, BYTES_PER_S, FLOPS
from kernels.hardware.tables import Table, names_in, read_named
from kernels.hardware.traits import P2P, DeviceTraits, family_names, load_traits

PRODUCTS = Path(__file__).parent / "products"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRates:
    """Dense multiply-add peaks by operand type, accumulating in fp32 (int8: int32).

    Units: operations per second, a multiply-add being two; None where the device has no unit for
    the type, or where nothing is published.
    """

    fp32: float | None
    bf16: float | None
    fp16: float | None
    fp8: float | None
    fp4: float | None
    int8: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One card, module or processor.

    Units: bytes, bytes per second; `num_sms` counts multiprocessors, compute units or cores.
    """

    name: str
    family: str
    memory_bytes: int
    memory_bandwidth_bytes_s: float | None
    num_sms: int | None
    peak: PeakRates
    p2p: str  # yes, no, unknown: with the vendor's stock driver
    pci_ids: tuple[str, ...]  # "10de:2b85"
    source: str

    @property
    def traits(self) -> DeviceTraits:
        """The family's row."""
        return load_traits(self.family)


def product_names() -> tuple[str, ...]:
    """Every product there is a table for, sorted."""
    return names_in(PRODUCTS)


def load_product(name: str) -> Product:
    """The product `name`, such as "rtx-5090".

    Raises: UnknownName with the list of products.
    """
    return parse_product(read_named(PRODUCTS, "product", name))


def product_by_pci_id(pci_id: str) -> Product | None:
    """The product whose table lists `pci_id` ("10de:2b85"), None where none does."""
    products = (load_product(name) for name in product_names())
    return next((product for product in products if pci_id in product.pci_ids), None)


def parse_product(table: Table) -> Product:
    """A product from its table; every key must be there."""
    product = Product(
        name=table.text("name"),
        family=table.choice("family", family_names()),
        memory_bytes=int(table.quantity("memory", BYTES)),
        memory_bandwidth_bytes_s=table.quantity_or_unknown("memory_bandwidth", BYTES_PER_S),
        num_sms=table.count_or_unknown("num_sms", 1, 100_000),
        peak=_parse_peak(table.table("peak")),
        p2p=table.choice("p2p", P2P),
        pci_ids=table.texts("pci_ids"),
        source=table.text("source"),
    )
    table.close()
    return product


def _parse_peak(table: Table) -> PeakRates:
    rates = {f.name: table.quantity_or_unknown(f.name, FLOPS) for f in fields(PeakRates)}
    table.close()
    return PeakRates(**rates)
