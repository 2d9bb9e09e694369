"""Pools of cached rows that serve as key and value: in the activations' dtype, or in e4m3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.errors import ShapeError
from kernels.quantise import FP8_LIMIT

if TYPE_CHECKING:
    import torch

# P rows of the pool, N values, G groups of values, R tail, D = N + R, T tokens, K rows of an index.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows by their place in a pool: page · page size + slot. A page is a run of rows.

    Shapes: values (P, N), the first N columns, in the activations' dtype or e4m3fn; scales (P, G)
    for e4m3fn alone, one for each group of N / G values, float32 or powers of two (e8m0); tail
    (P, R), the last R columns unscaled in the activations' dtype, or None. Any row strides: the
    parts may be views of one buffer.
    """

    values_PN: torch.Tensor
    scales_PG: torch.Tensor | None = None
    tail_PR: torch.Tensor | None = None

    @property
    def num_values(self) -> int:
        """N, the columns before the tail."""
        return self.values_PN.shape[1]

    @property
    def num_tail(self) -> int:
        """R, the columns of the tail."""
        return 0 if self.tail_PR is None else self.tail_PR.shape[1]

    @property
    def width(self) -> int:
        """D, the columns of a whole row."""
        return self.num_values + self.num_tail

    @property
    def group(self) -> int:
        """Values that share a scale; 0 without scales."""
        return 0 if self.scales_PG is None else self.num_values // self.scales_PG.shape[1]

    @property
    def layout(self) -> str:
        """What must be equal for rows of two pools to be read by one program."""
        scales = "none" if self.scales_PG is None else f"{self.scales_PG.dtype} for {self.group}"
        return f"{self.num_values} + {self.num_tail} columns, scales {scales}"

    @property
    def format_name(self) -> str:
        """What a case calls the rows: "fp8" or "bf16"."""
        return "bf16" if self.scales_PG is None else "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows of a pool that each token attends to.

    Shapes: index (T, K), integers, rows of the pool in any order, -1 none.
    """

    rows: Rows
    index_TK: torch.Tensor


def gather(rows: Rows, index_TK: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows that an index names, multiplied out, (T, K, D) in `dtype`; -1 gives zeros."""
    import torch

    place_TK = index_TK.clamp(min=0).long()
    is_row = (index_TK >= 0)[..., None]
    x = rows.values_PN[place_TK].to(torch.promote_types(dtype, torch.float32))
    if rows.scales_PG is not None:
        x = x * rows.scales_PG[place_TK].to(x.dtype).repeat_interleave(rows.group, dim=-1)
    x = x.to(dtype)
    if rows.tail_PR is not None:
        x = torch.cat([x, rows.tail_PR[place_TK].to(dtype)], dim=-1)
    return x.masked_fill(~is_row, 0)


def quantise(x_PD: torch.Tensor, *, num_tail: int, group: int, is_e8m0: bool = False) -> Rows:
    """Rows in e4m3 with a scale for every `group` values and the last `num_tail` columns as is.

    Numerics: scale = amax / 448, for e8m0 the next power of two; |error| ≤ 1/16 of a value in the
    normal range. Raises: ShapeError when the groups do not fill the values.
    """
    import torch

    num_values = x_PD.shape[1] - num_tail
    if num_values % group:
        raise ShapeError(f"{num_values} values do not divide into groups of {group}")
    wide_PGB = x_PD[:, :num_values].float().unflatten(1, (num_values // group, group))
    scale_PG = wide_PGB.abs().amax(-1) / FP8_LIMIT
    scale_PG = torch.where(scale_PG > 0, scale_PG, torch.ones_like(scale_PG))
    if is_e8m0:
        scale_PG = torch.exp2(torch.ceil(torch.log2(scale_PG))).clamp(min=2.0**-126)
    values = (wide_PGB / scale_PG[..., None]).clamp(-FP8_LIMIT, FP8_LIMIT)
    return Rows(
        values_PN=values.flatten(1).to(torch.float8_e4m3fn),
        scales_PG=scale_PG.to(torch.float8_e8m0fnu) if is_e8m0 else scale_PG,
        tail_PR=x_PD[:, num_values:].contiguous() if num_tail else None,
    )


def check_rows(rows: Rows, dtype: torch.dtype, width: int, *, name: str) -> None:
    """Refuse a pool whose parts do not fit each other, the dtype or the width of a query.

    Raises:
        ShapeError: names the part and what it must be.
    """
    import torch

    from kernels.checks import check_dtype, check_shape

    pool = {"P": rows.values_PN.shape[0]}
    check_shape(rows.values_PN, "P N", pool, name=f"{name}.values")
    if rows.scales_PG is None:
        check_dtype(rows.values_PN, (dtype,), name=f"{name}.values")
    else:
        check_dtype(rows.values_PN, (torch.float8_e4m3fn,), name=f"{name}.values")
        check_dtype(rows.scales_PG, (torch.float32, torch.float8_e8m0fnu), name=f"{name}.scales")
        check_shape(rows.scales_PG, "P G", pool, name=f"{name}.scales")
        _check_groups(rows, name)
    if rows.tail_PR is not None:
        check_dtype(rows.tail_PR, (dtype,), name=f"{name}.tail")
        check_shape(rows.tail_PR, "P R", pool, name=f"{name}.tail")
    if rows.width != width:
        raise ShapeError(f"{name} is {rows.width} wide; queries are {width} wide")


def _check_groups(rows: Rows, name: str) -> None:
    """Groups are powers of two of at least 16, so that a slice of a kernel lies in one."""
    assert rows.scales_PG is not None
    num_groups, group = rows.scales_PG.shape[1], rows.group
    if group < 16 or group & (group - 1) or group * num_groups != rows.num_values:
        raise ShapeError(
            f"{name} has {num_groups} scales for {rows.num_values} values; a scale serves a power "
            "of two of values, 16 or more"
        )
