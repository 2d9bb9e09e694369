"""Matrices quantised by groups of columns: as files store them, and packed for the CPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from kernels.checks import check_dtype, check_shape
from kernels.errors import ShapeError
from kernels.native.huge_pages import huge_pages
from kernels.native.library import Library, Pool, Weight, library

# N rows (outputs), K columns (inputs), G groups of columns.

_WIDTHS = ((4, 32), (8, 32), (8, 16))
# Panels have 8 or 16 rows, as the machine's registers are wide: what begins at a multiple of this
# begins with a panel everywhere.
PANEL_ROWS = 16


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """w = scale * quant + minimum, per row and group of columns.

    Shapes: quants (N, K), uint8 from 0 to 15 for 4 bits, int8 for 8 bits; scales and minima
    (N, K / group) float32; minima None: all 0.
    Raises: ShapeError for other shapes, dtypes or widths.
    """

    quants_NK: torch.Tensor
    scales_NG: torch.Tensor
    minima_NG: torch.Tensor | None
    bits: int
    group: int

    def __post_init__(self) -> None:
        """Check widths and shapes."""
        if (self.bits, self.group) not in _WIDTHS:
            raise ShapeError(
                f"{self.bits} bits in groups of {self.group}: the packed product takes "
                f"{', '.join(f'{bits} in {group}' for bits, group in _WIDTHS)}"
            )
        check_shape(self.quants_NK, "N K", {}, name="quants")
        check_dtype(self.quants_NK, (torch.uint8 if self.bits == 4 else torch.int8,), name="quants")
        num_rows, num_columns = self.quants_NK.shape
        if num_columns % self.group:
            raise ShapeError(f"K={num_columns} is no multiple of the group {self.group}")
        sizes = {"N": num_rows, "G": num_columns // self.group}
        for name, x_NG in (("scales", self.scales_NG), ("minima", self.minima_NG)):
            if x_NG is not None:
                check_shape(x_NG, "N G", sizes, name=name)
                check_dtype(x_NG, (torch.float32,), name=name)

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        """The values (N, K), computed in `dtype`."""
        num_rows, num_groups = self.scales_NG.shape
        groups = self.quants_NK.reshape(num_rows, num_groups, self.group).to(dtype)
        values = groups * self.scales_NG.to(dtype)[..., None]
        if self.minima_NG is not None:
            values = values + self.minima_NG.to(dtype)[..., None]
        return values.reshape(num_rows, -1)


class PackedMatrix:
    """A quantised matrix in the native kernels' panels, with what a call needs of it.

    Scales are kept in float16 where that holds them all exactly, else in float32.
    """

    def __init__(
        self,
        matrix: QuantisedMatrix,
        bias_N: torch.Tensor | None,
        threads: Pool,
        native: Library | None = None,
    ) -> None:
        """Pack. Raises: NativeBuildFailed where the kernels cannot be built."""
        native = native or library()
        quants, scales = matrix.quants_NK.contiguous(), matrix.scales_NG.contiguous()
        minima = None if matrix.minima_NG is None else matrix.minima_NG.contiguous()
        parts = [scales] if minima is None else [scales, minima]
        is_exact = all(native.all_exact_half(x.data_ptr(), x.numel()) for x in parts)
        self._native = native
        self.num_rows, self.num_columns = matrix.quants_NK.shape
        self.bias_N = None if bias_N is None else bias_N.float().contiguous()
        self.weight = Weight(
            bias=None if self.bias_N is None else self.bias_N.data_ptr(),
            num_rows=self.num_rows,
            num_columns=self.num_columns,
            bits=matrix.bits,
            group=matrix.group,
            has_minima=minima is not None,
            has_wide_scales=not is_exact,
        )
        self.address = ctypes.addressof(self.weight)
        num_bytes: int = native.packed_bytes(self.address)
        self._data, self._block = huge_pages().take(num_bytes)
        self.weight.data = self._data.data_ptr()
        self.weight.panel_stride = num_bytes // max(1, -(-self.num_rows // native.lanes()))
        native.pack(
            threads.handle,
            self.address,
            quants.data_ptr(),
            scales.data_ptr(),
            None if minima is None else minima.data_ptr(),
        )

    @property
    def num_bytes(self) -> int:
        """Memory of the panels."""
        return self._data.numel()

    def rows(self, ids_N: torch.Tensor) -> torch.Tensor:
        """Rows by number, multiplied out: float32 (len(ids), K). Numbers must be below N."""
        ids_N = ids_N.contiguous()
        out = torch.empty(ids_N.shape[0], self.num_columns)
        self._native.rows(self.address, ids_N.data_ptr(), ids_N.shape[0], out.data_ptr())
        return out

    def part(self, rows: range, columns: range, *, has_bias: bool = True) -> PackedPart:
        """Some rows and columns, over the same memory. See `PackedPart`."""
        return PackedPart(self, rows, columns, has_bias=has_bias)


class PackedPart(PackedMatrix):
    """Rows and columns of a packed matrix, in its memory.

    Exact: a row's groups are multiplied as they are in the whole matrix.
    Raises: ShapeError for rows that do not begin with a panel, or columns that do not begin and end
        with a group.
    """

    def __init__(
        self, whole: PackedMatrix, rows: range, columns: range, *, has_bias: bool = True
    ) -> None:
        """Keep the whole matrix's memory; with `has_bias` the rows have their biases."""
        weight, native = whole.weight, whole._native
        lanes, group = native.lanes(), weight.group
        if rows.start % lanes or columns.start % group or columns.stop % group:
            raise ShapeError(
                f"rows {rows.start}:{rows.stop} and columns {columns.start}:{columns.stop} of a "
                f"packed matrix: rows begin at multiples of {lanes}, columns begin and end at "
                f"multiples of {group}"
            )
        self._native, self._data, self._block = native, whole._data, whole._block
        self.num_rows, self.num_columns = len(rows), len(columns)
        self.bias_N = None
        if has_bias and whole.bias_N is not None:
            self.bias_N = whole.bias_N[rows.start : rows.stop].clone()
        groups = max(1, weight.num_columns // group)
        first = rows.start // lanes * weight.panel_stride
        first += columns.start // group * (self._panel_bytes(whole) // groups)
        self.weight = Weight(
            data=weight.data + first,
            bias=None if self.bias_N is None else self.bias_N.data_ptr(),
            num_rows=self.num_rows,
            num_columns=self.num_columns,
            panel_stride=weight.panel_stride,
            bits=weight.bits,
            group=group,
            has_minima=weight.has_minima,
            has_wide_scales=weight.has_wide_scales,
        )
        self.address = ctypes.addressof(self.weight)

    @property
    def num_bytes(self) -> int:
        """None of its own: the memory is the whole matrix's."""
        return 0

    def _panel_bytes(self, whole: PackedMatrix) -> int:
        """Of one panel's columns; the stride is wider where they are themselves a part."""
        num_panels = max(1, -(-whole.num_rows // self._native.lanes()))
        return self._native.packed_bytes(whole.address) // num_panels
