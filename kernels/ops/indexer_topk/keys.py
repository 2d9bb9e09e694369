"""Keys of an indexer: a pool of rows, one scale each where they are e4m3, in pages or in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.errors import ShapeError

if TYPE_CHECKING:
    import torch

# P rows of the pool, D width, B sequences, M pages of a sequence, T tokens.


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where the key at each position of a sequence lies.

    Shapes: values (P, D) in the queries' dtype or e4m3fn, any row stride; scales (P) float32 for
    e4m3fn alone. Without a table position s is row s, for all tokens. With one, table (B, M) int32
    names the pages of `page_size` rows of each sequence, and sequence (T) int32 the sequence of
    each token.
    """

    values_PD: torch.Tensor
    scales_P: torch.Tensor | None = None
    table_BM: torch.Tensor | None = None
    sequence_T: torch.Tensor | None = None
    page_size: int = 1

    @property
    def num_positions(self) -> int:
        """S, the most keys that a sequence can have."""
        if self.table_BM is None:
            return self.values_PD.shape[0]
        return self.table_BM.shape[1] * self.page_size

    @property
    def format_name(self) -> str:
        """What a case calls the keys: "fp8" or "bf16"."""
        return "bf16" if self.scales_P is None else "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Blocks of neighbouring positions that alone are looked at, of those a query may see.

    Shapes: blocks (T, N) int32, rising in a row, -1 none.
    """

    blocks_TN: torch.Tensor
    block_size: int = 8

    @property
    def num_positions(self) -> int:
        """The most keys that a query looks at."""
        return self.blocks_TN.shape[1] * self.block_size


def key_rows(keys: Keys, position_TS: torch.Tensor, tokens: slice) -> torch.Tensor:
    """Rows of the pool at positions of each token's sequence; positions must exist."""
    if keys.table_BM is None:
        return position_TS
    assert keys.sequence_T is not None
    table_TM = keys.table_BM[keys.sequence_T[tokens].long()].long()
    page_TS = table_TM.gather(1, position_TS // keys.page_size)
    return page_TS * keys.page_size + position_TS % keys.page_size


def check_keys(keys: Keys, dtype: torch.dtype, width: int, num_tokens: int) -> None:
    """Refuse keys whose parts do not fit each other or the queries.

    Raises:
        ShapeError: names the part and what it must be.
    """
    import torch

    from kernels.checks import check_dtype, check_shape

    check_shape(keys.values_PD, "P D", {"D": width}, name="keys.values")
    if keys.scales_P is None:
        check_dtype(keys.values_PD, (dtype,), name="keys.values")
    else:
        check_dtype(keys.values_PD, (torch.float8_e4m3fn,), name="keys.values")
        check_dtype(keys.scales_P, (torch.float32,), name="keys.scales")
        check_shape(keys.scales_P, "P", {"P": keys.values_PD.shape[0]}, name="keys.scales")
    if (keys.table_BM is None) != (keys.sequence_T is None):
        raise ShapeError("keys.table and keys.sequence come together")
    if keys.table_BM is not None and keys.sequence_T is not None:
        check_shape(keys.table_BM, "B M", {}, name="keys.table")
        check_shape(keys.sequence_T, "T", {"T": num_tokens}, name="keys.sequence")
