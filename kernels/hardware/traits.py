"""What a family of devices has: one row each, looked up by exact name.

"Blackwell" is not one thing, so nothing here has an order: a rule asks for a trait, never for a
capability number above another. A cell that is None is not known, or has no meaning on that
device; its note says which, and a rule reads it as "has not".
"""

from dataclasses import dataclass, fields
from pathlib import Path

from kernels.hardware.tables import Table, names_in, read_named

FAMILIES = Path(__file__).parent / "families"

KINDS = ("gpu", "npu", "cpu")
BACKENDS = ("cuda", "rocm", "cann", "musa", "dtk", "kunlun", "maca", "cpu")
FP8_FORMATS = ("e4m3fn", "e4m3fnuz", "none", "unknown")
P2P = ("yes", "no", "unknown")
TRITON = ("yes", "no", "vendor", "unknown")
SPARSE_ATTENTION = ("on", "explicit", "absent")
_SIZE_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Where a cell comes from, or why it is empty ("n/a: ..." or "unverified: ...")."""

    cell: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTraits:
    """One family of devices.

    Units: sizes in bytes; `regs_per_sm` in 32-bit registers per multiprocessor or compute unit;
    `warp_size` in lanes.
    Invariants: every cell that is None or "unknown" has a note; `verified` says that lanewise
    itself has run on such a device.
    """

    name: str
    vendor: str
    kind: str  # gpu, npu, cpu
    description: str
    backend: str  # of BACKENDS; what torch calls the device is the profile's business
    bf16_mma: bool | None
    fp16_mma: bool | None
    fp8_mma: bool | None
    fp8_format: str  # e4m3fn, e4m3fnuz, none, unknown
    fp4_mma: bool | None
    int8_mma: bool | None
    mma_family: str  # mma.sync, wgmma, tcgen05, mfma, wmma, cube, avx512_bf16, amx, fma, unknown
    tcgen05: bool
    wgmma: bool
    tma: bool
    cp_async: bool
    warp_size: int | None
    max_smem_bytes: int | None  # per block, opted in
    regs_per_sm: int | None
    graph_capture: bool | None
    pdl: bool  # programmatic dependent launch
    symmetric_memory: bool | None
    p2p: str  # yes, no, unknown: what the family's products do by default
    custom_allreduce: bool  # may our own all-reduce over peer mappings be tried at all
    triton: str  # yes, no, vendor (through the vendor's fork), unknown
    triton_target: str  # "cuda:89:32" = backend:arch:warp, or "none"
    sparse_attention_default: str  # on, explicit, absent
    simd_level: str  # of a CPU, else "none"
    cpu_flags: tuple[str, ...]  # all of them in /proc/cpuinfo make this level
    verified: bool
    source: str
    notes: tuple[Note, ...]

    def note(self, cell: str) -> str:
        """What is known about `cell` beyond its value; the row's source where nothing is."""
        return next((note.text for note in self.notes if note.cell == cell), self.source)

    def unknown_cells(self) -> tuple[str, ...]:
        """Names of the cells that hold no value."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) in (None, "unknown"))


def family_names() -> tuple[str, ...]:
    """Every family there is a row for, sorted."""
    return names_in(FAMILIES)


def load_traits(name: str) -> DeviceTraits:
    """The row of the family `name`, such as "sm_120".

    Raises: UnknownName with the list of families; MalformedFile if its row breaks the schema.
    """
    return parse_traits(read_named(FAMILIES, "device family", name), name)


def parse_traits(table: Table, name: str) -> DeviceTraits:
    """A row from its table; every cell must be there."""
    row = DeviceTraits(
        name=table.choice("name", (name,)),
        vendor=table.text("vendor"),
        kind=table.choice("kind", KINDS),
        description=table.text("description"),
        backend=table.choice("backend", BACKENDS),
        bf16_mma=table.flag_or_unknown("bf16_mma"),
        fp16_mma=table.flag_or_unknown("fp16_mma"),
        fp8_mma=table.flag_or_unknown("fp8_mma"),
        fp8_format=table.choice("fp8_format", FP8_FORMATS),
        fp4_mma=table.flag_or_unknown("fp4_mma"),
        int8_mma=table.flag_or_unknown("int8_mma"),
        mma_family=table.text("mma_family"),
        tcgen05=table.flag("tcgen05"),
        wgmma=table.flag("wgmma"),
        tma=table.flag("tma"),
        cp_async=table.flag("cp_async"),
        warp_size=table.count_or_unknown("warp_size", 1, 1024),
        max_smem_bytes=table.count_or_unknown("max_smem_bytes", 1, _SIZE_LIMIT),
        regs_per_sm=table.count_or_unknown("regs_per_sm", 1, _SIZE_LIMIT),
        graph_capture=table.flag_or_unknown("graph_capture"),
        pdl=table.flag("pdl"),
        symmetric_memory=table.flag_or_unknown("symmetric_memory"),
        p2p=table.choice("p2p", P2P),
        custom_allreduce=table.flag("custom_allreduce"),
        triton=table.choice("triton", TRITON),
        triton_target=table.text("triton_target"),
        sparse_attention_default=table.choice("sparse_attention_default", SPARSE_ATTENTION),
        simd_level=table.text("simd_level"),
        cpu_flags=table.texts("cpu_flags"),
        verified=table.flag("verified"),
        source=table.text("source"),
        notes=_notes(table.table("notes")),
    )
    table.close()
    _check_notes(table, row)
    return row


def _notes(table: Table) -> tuple[Note, ...]:
    cells = {f.name for f in fields(DeviceTraits)} - {"notes", "source"}
    for cell in table.remaining():
        if cell not in cells:
            raise table.fail(cell, f"notes a cell that no row has; cells: {', '.join(cells)}")
    return tuple(Note(cell=cell, text=table.text(cell)) for cell in table.remaining())


def _check_notes(table: Table, row: DeviceTraits) -> None:
    noted = {note.cell: note.text for note in row.notes}
    for cell in row.unknown_cells():
        if not noted.get(cell, "").startswith(("n/a: ", "unverified: ")):
            raise table.fail(
                cell, 'is unknown, so notes must say why: "n/a: ..." or "unverified: ..."'
            )
