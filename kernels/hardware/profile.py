"""What a vendor's software allows: the mechanisms that are on, the kernels that may be chosen.

"Sparse attention explicitly on, vendor-only mechanisms off" is a record here, not an `if cuda`.
A mechanism runs where its profile allows it and the family has it (traits).
"""

from dataclasses import dataclass, fields
from pathlib import Path

from kernels.hardware.tables import Table, names_in, read_named
from kernels.hardware.traits import BACKENDS, Note

PROFILES = Path(__file__).parent / "profiles"

KERNEL_CLASSES = ("triton", "torch", "vendor")
FP8_GEMM = ("native", "w8a16", "int8")
FP4 = ("native", "lut-dequant")
MECHANISMS = ("pdl", "symmetric_memory", "custom_allreduce", "graphs")


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorProfile:
    """One backend's allowances, each with its reason.

    Units: `page_size` in tokens; `head_pad` in query heads; `num_warps_cap` in warps per block,
    None where there are no warps.
    Invariants: lists are in the order of preference; every field but the first three has a reason.
    """

    name: str  # the backend of DeviceTraits
    vendor: str
    torch_device: str  # what torch calls such a device
    sparse_attention: str  # on, explicit
    kernel_classes: tuple[str, ...]
    fp8_gemm: tuple[str, ...]
    fp4: tuple[str, ...]
    pdl: bool
    symmetric_memory: bool
    custom_allreduce: bool
    graphs: bool
    page_size: int
    head_pad: int
    num_warps_cap: int | None
    reasons: tuple[Note, ...]

    def reason(self, cell: str) -> str:
        """Why `cell` is what it is."""
        return next(reason.text for reason in self.reasons if reason.cell == cell)

    @property
    def mechanisms_off(self) -> tuple[str, ...]:
        """The mechanisms that this backend never uses."""
        return tuple(name for name in MECHANISMS if not getattr(self, name))

    def lines(self) -> tuple[str, ...]:
        """What a plan prints about this backend: sparse attention, then what is off and why."""
        sparse = {"on": "on", "explicit": "must be switched on explicitly"}[self.sparse_attention]
        return (
            f"sparse attention: {sparse} ({self.reason('sparse_attention')})",
            *(f"{name}: off ({self.reason(name)})" for name in self.mechanisms_off),
        )


def profile_names() -> tuple[str, ...]:
    """Every backend there is a profile for, sorted."""
    return names_in(PROFILES)


def load_profile(name: str) -> VendorProfile:
    """The profile of the backend `name`, such as "cuda"; DeviceTraits.backend is that name.

    Raises: UnknownName with the list of profiles; MalformedFile if its table breaks the schema.
    """
    return parse_profile(read_named(PROFILES, "vendor profile", name))


def parse_profile(table: Table) -> VendorProfile:
    """A profile from its table; every key must be there, every allowance with its reason."""
    profile = VendorProfile(
        name=table.choice("name", BACKENDS),
        vendor=table.text("vendor"),
        torch_device=table.text("torch_device"),
        sparse_attention=table.choice("sparse_attention", ("on", "explicit")),
        kernel_classes=_subset(table, "kernel_classes", KERNEL_CLASSES),
        fp8_gemm=_subset(table, "fp8_gemm", FP8_GEMM),
        fp4=_subset(table, "fp4", FP4),
        pdl=table.flag("pdl"),
        symmetric_memory=table.flag("symmetric_memory"),
        custom_allreduce=table.flag("custom_allreduce"),
        graphs=table.flag("graphs"),
        page_size=table.count("page_size", 1, 4096),
        head_pad=table.count("head_pad", 1, 256),
        num_warps_cap=table.count_or_unknown("num_warps_cap", 1, 64),
        reasons=_reasons(table.table("reasons")),
    )
    table.close()
    return profile


def _subset(table: Table, key: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    values = table.texts(key)
    for value in values:
        if value not in allowed:
            raise table.fail(key, f"{value!r} must be one of {', '.join(allowed)}")
    if not values:
        raise table.fail(key, f"must name at least one of {', '.join(allowed)}")
    return values


def _reasons(table: Table) -> tuple[Note, ...]:
    without = {"name", "vendor", "torch_device", "reasons"}
    cells = [f.name for f in fields(VendorProfile) if f.name not in without]
    reasons = tuple(Note(cell=cell, text=table.text(cell)) for cell in cells)
    table.close()
    return reasons
