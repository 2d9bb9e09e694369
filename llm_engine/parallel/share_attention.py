"""Attention of one rank's queries to one rank's share of the keys: a part of a sum."""

# R rows of the rank that asks, S those of them that see a key, H query heads, K key/value heads,
# D head dim, B spans with such rows, M pages of the longest, P pages, Z slots of a page.

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf

import torch

from llm_engine.device import upload
from llm_engine.layers.attention import AttentionOps
from llm_engine.parallel.stripes import Reach


class ShareAttention:
    """Built once for a step, then called for each layer."""

    def __init__(
        self,
        ops: AttentionOps,
        parts: Sequence[tuple[int, Sequence[Reach]]],
        tables: Sequence[Sequence[int]],
        *,
        scale: float,
        decodes: bool,
        place: torch.device,
    ) -> None:
        """`parts` are numbers of rows and what they see, of one rank after the other.

        `tables` are the pages of each span; `decodes` where every span has one token; `place` is
        where the rows are.
        """
        self._ops, self._scale, self._decodes = ops, scale, decodes
        self._num_rows = sum(count for count, _ in parts)
        first, seen = 0, list[tuple[int, Reach]]()
        for count, reaches in parts:
            seen += [(first + reach.first_row, reach) for reach in reaches]
            first += count
        rows = [row for start, r in seen for row in range(start, start + r.num_rows)]
        self._rows_S = None if len(rows) == self._num_rows else upload(rows, torch.int64, place)
        self._has_rows = bool(rows)
        bounds = [0, *accumulate(reach.num_rows for _, reach in seen)]
        self._bounds = upload(bounds, torch.int32, place)
        lengths = [reach.num_keys for _, reach in seen]
        self._lengths_B = upload(lengths, torch.int32, place)
        longest = max((len(tables[r.span]) for _, r in seen), default=0)
        padded = [[*tables[r.span], *[0] * (longest - len(tables[r.span]))] for _, r in seen]
        self._table_BM = upload(padded, torch.int32, place)

    def __call__(
        self, q_RHD: torch.Tensor, cache_PZ2KD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output (R, H, D) and log-sum-exp (R, H), float32; 0 and -inf for rows without a key.

        Numerics: the part is rounded once to q's dtype, as the op returns it.
        """
        o_RHD = torch.zeros(q_RHD.shape, dtype=torch.float32, device=q_RHD.device)
        lse_RH = torch.full(q_RHD.shape[:2], -inf, device=q_RHD.device)
        if not self._has_rows:
            return o_RHD, lse_RH
        if self._rows_S is None:
            o_SHD, lse_SH = self._attend(q_RHD, cache_PZ2KD)
            return o_SHD.float(), lse_SH.float()
        o_SHD, lse_SH = self._attend(q_RHD.index_select(0, self._rows_S), cache_PZ2KD)
        o_RHD.index_copy_(0, self._rows_S, o_SHD.float())
        lse_RH.index_copy_(0, self._rows_S, lse_SH.float())
        return o_RHD, lse_RH

    def _attend(
        self, q_SHD: torch.Tensor, cache_PZ2KD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pages = (self._lengths_B, self._table_BM)
        if self._decodes:
            return self._ops.paged_decode(q_SHD, cache_PZ2KD, *pages, scale=self._scale)
        return self._ops.paged_prefill(q_SHD, cache_PZ2KD, self._bounds, *pages, scale=self._scale)
