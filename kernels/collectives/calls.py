"""What a rank calls, as cells that all ranks compare before anything moves."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import torch

from kernels.collectives.errors import MismatchedCall
from kernels.errors import ShapeError

Reduction = Literal["sum", "max"]
Contract = Literal["exact", "fast", "int8"]

OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "barrier",
)
DEVICE_KINDS = ("cpu", "cuda")
CONTRACTS: tuple[Contract, ...] = ("exact", "fast", "int8")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8)
REDUCIBLE = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
REDUCTIONS: tuple[Reduction, ...] = ("sum", "max")
_MAX_DIMS, _MAX_COUNTS = 7, 64
_FIXED = 7
CALL_CELLS = _FIXED + _MAX_DIMS + _MAX_COUNTS


def dtype_name(dtype: torch.dtype) -> str:
    """torch's own name of a dtype: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One rank's part of an operation.

    `counts` are rows (entries of dim 0) for or from each rank. Where ranks may differ in them
    (all_gather, all_to_all), neither they nor dim 0 of `shape` are compared.
    """

    operation: str
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    shape: tuple[int, ...] = ()
    reduction: Reduction = "sum"
    contract: Contract = "exact"
    root: int = 0
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            names = ", ".join(map(dtype_name, DTYPES))
            raise ShapeError(f"{self.operation} of {self.dtype}: takes {names}")
        if self.device not in DEVICE_KINDS:
            raise ShapeError(f"{self.operation} on {self.device}: takes {', '.join(DEVICE_KINDS)}")
        if len(self.shape) > _MAX_DIMS:
            raise ShapeError(f"{self.operation} of {len(self.shape)} dims: {_MAX_DIMS} at most")

    @property
    def name(self) -> str:
        """The call in words: `all_reduce sum of bfloat16 (3, 4)`."""
        if self.operation == "barrier":
            return "barrier"
        what = f"{self.reduction} " if self.operation in ("all_reduce", "reduce_scatter") else ""
        kind = dtype_name(self.dtype)
        root = f" from rank {self.root}" if self.operation == "broadcast" else ""
        where = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self.operation} {what}({self.contract}) of {kind} {self.shape}{root}{where}"

    @property
    def compared(self) -> tuple[object, ...]:
        """What must be the same on all ranks."""
        is_uneven = self.operation in ("all_gather", "all_to_all")
        rows = () if is_uneven else (self.shape[:1], self.counts)
        fixed = (self.operation, self.dtype, self.device, self.reduction, self.contract, self.root)
        return (*fixed, len(self.shape), self.shape[1:], rows)

    def packed(self) -> bytes:
        """`CALL_CELLS` cells of 8 bytes."""
        values = (
            OPERATIONS.index(self.operation),
            DTYPES.index(self.dtype) + len(DTYPES) * DEVICE_KINDS.index(self.device),
            REDUCTIONS.index(self.reduction),
            CONTRACTS.index(self.contract),
            self.root,
            len(self.shape),
            len(self.counts),
            *self.shape,
            *self.counts,
        )
        return struct.pack(f"={CALL_CELLS}q", *values, *[0] * (CALL_CELLS - len(values)))

    @classmethod
    def unpacked(cls, row: bytes) -> Call:
        """The call that was packed into a row."""
        cells = struct.unpack(f"={CALL_CELLS}q", row)
        fixed = cells[:_FIXED]
        first, middle = _FIXED, _FIXED + fixed[5]
        return cls(
            operation=OPERATIONS[fixed[0]],
            dtype=DTYPES[fixed[1] % len(DTYPES)],
            device=DEVICE_KINDS[fixed[1] // len(DTYPES)],
            reduction=REDUCTIONS[fixed[2]],
            contract=CONTRACTS[fixed[3]],
            root=fixed[4],
            shape=tuple(cells[i] for i in range(first, middle)),
            counts=tuple(cells[i] for i in range(middle, middle + fixed[6])),
        )


def check_same(calls: list[Call], rank: int) -> None:
    """Every rank must call the same.

    Raises:
        MismatchedCall: naming the ranks that differ from the most common call, and both calls.
    """
    kinds = [call.compared for call in calls]
    if kinds.count(kinds[0]) == len(kinds):
        return
    usual = Counter(kinds).most_common(1)[0][0]
    first = kinds.index(usual)
    odd = "; ".join(
        f"rank {r} calls {call.name}{_counts(call)}"
        for r, call in enumerate(calls)
        if call.compared != usual
    )
    raise MismatchedCall(
        f"on rank {rank}: {odd}; expected as rank {first}: {calls[first].name}"
        f"{_counts(calls[first])}. Nothing was exchanged"
    )


def _counts(call: Call) -> str:
    return f" rows {call.counts}" if call.counts else ""
