"""Attention when a step's rows are split over ranks: exchanged by heads, or keys gathered."""

# N rows of the step, R of them on this rank, H query heads and K key/value heads of the rank's
# weights, G and J those whose keys its cache holds, X = G + 2 J, D head dim, P heads of rows.

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.calls import Contract
from kernels.collectives.protocol import Communicator
from llm_engine.layers.attention import PagedAttention, PagedCache
from llm_engine.layers.step import Attend
from llm_engine.parallel.shares import HeadShare


class HeadExchange:
    """Each rank attends with its own heads over all rows: one all-to-all there, one back.

    Exact: values are moved, and attention is that of a rank that has those heads alone.
    Source: Jacobs et al. 2023, arXiv:2309.14509 (Ulysses).
    """

    def __init__(
        self,
        inner: Attend,
        cp: Communicator,
        shares: Sequence[HeadShare],
        row_counts: Sequence[int],
    ) -> None:
        """`inner` covers all rows; `shares` are the heads, `row_counts` the rows of cp ranks."""
        self._inner, self._cp = inner, cp
        first_query, first_kv = shares[0].queries.start, shares[0].kv.start
        self._queries = [_slice(share.queries, first_query) for share in shares]
        self._kv = [_slice(share.kv, first_kv) for share in shares]
        self._own = shares[cp.group.rank]
        self._row_counts = list(row_counts)

    def __call__(
        self, layer: int, q_RHD: torch.Tensor, k_RKD: torch.Tensor, v_RKD: torch.Tensor
    ) -> torch.Tensor:
        """See `llm_engine.layers.step.Attend`."""
        mine_PD = self.go(self.packed(q_RHD, k_RKD, v_RKD))
        return self.joined(self.come_back(self.attend(layer, mine_PD)))

    def packed(self, q_RHD: torch.Tensor, k_RKD: torch.Tensor, v_RKD: torch.Tensor) -> torch.Tensor:
        """The heads of this rank's rows, by the rank that attends with them. Shapes: (P, D)."""
        parts = [
            torch.cat((q_RHD[:, queries], k_RKD[:, kv], v_RKD[:, kv]), dim=1).flatten(0, 1)
            for queries, kv in zip(self._queries, self._kv, strict=True)
        ]
        return torch.cat(parts)

    def go(self, heads_PD: torch.Tensor, contract: Contract = "exact") -> torch.Tensor:
        """To the ranks that attend with them: all rows of this rank's heads. Shapes: (P, D)."""
        pairs = zip(self._queries, self._kv, strict=True)
        sizes = [self._num_rows * (_width(q) + 2 * _width(kv)) for q, kv in pairs]
        return self._cp.all_to_all(heads_PD, sizes, contract=contract)[0]

    def attend(self, layer: int, mine_PD: torch.Tensor) -> torch.Tensor:
        """Store and attend. Shapes: (P, D), outputs of this rank's heads for all rows."""
        num_queries, num_kv = len(self._own.queries), len(self._own.kv)
        head_dim = mine_PD.shape[1]
        heads_NXD = mine_PD.view(-1, num_queries + 2 * num_kv, head_dim)
        q_NGD, k_NJD, v_NJD = heads_NXD.split_with_sizes((num_queries, num_kv, num_kv), 1)
        return self._inner(layer, q_NGD, k_NJD, v_NJD).reshape(-1, head_dim)

    def come_back(self, o_PD: torch.Tensor, contract: Contract = "exact") -> torch.Tensor:
        """To the ranks whose rows they are: outputs of all heads. Shapes: (P, D)."""
        sizes = [count * len(self._own.queries) for count in self._row_counts]
        return self._cp.all_to_all(o_PD, sizes, contract=contract)[0]

    def joined(self, o_PD: torch.Tensor) -> torch.Tensor:
        """Heads beside one another again. Shapes: (R, H, D)."""
        # By hand, since a rank without rows has nothing to infer a dimension from.
        widths = [_width(queries) for queries in self._queries]
        parts = o_PD.split([self._num_rows * width for width in widths])
        joined = [
            part.view(self._num_rows, width, o_PD.shape[1])
            for part, width in zip(parts, widths, strict=True)
        ]
        return torch.cat(joined, dim=1)

    @property
    def _num_rows(self) -> int:
        return self._row_counts[self._cp.group.rank]


class KeyGather:
    """Each rank attends with its own rows; keys and values of all rows go to every cache.

    Exact: turned keys and values are copied in the cache's own precision.
    """

    def __init__(
        self,
        inner: PagedAttention | None,
        cp: Communicator,
        cache: PagedCache,
        slots_N: torch.Tensor,
    ) -> None:
        """`inner` covers the rank's rows, None where it has none; `slots` are of all rows."""
        self._inner, self._cp = inner, cp
        self._cache, self._slots_N = cache, slots_N

    def __call__(
        self, layer: int, q_RHD: torch.Tensor, k_RKD: torch.Tensor, v_RKD: torch.Tensor
    ) -> torch.Tensor:
        """See `llm_engine.layers.step.Attend`."""
        q_RHD, kv_R2KD = self.store(layer, q_RHD, k_RKD, v_RKD)
        return self.attend(layer, q_RHD, self._cp.all_gather(kv_R2KD))

    def store(
        self, layer: int, q_RHD: torch.Tensor, k_RKD: torch.Tensor, v_RKD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Turned queries (R, H, D), and the rank's rows of the cache (R, 2, K, D)."""
        slots_2KD = self._cache.layers[layer].flatten(0, 1)
        if self._inner is None:
            return q_RHD, slots_2KD[:0]
        q_RHD = self._inner.store(layer, q_RHD, k_RKD, v_RKD)
        return q_RHD, slots_2KD.index_select(0, self._inner.slots)

    def attend(self, layer: int, q_RHD: torch.Tensor, kv_N2KD: torch.Tensor) -> torch.Tensor:
        """Store the rows of all ranks, then attend. Shapes: q and result (R, H, D)."""
        self._cache.layers[layer].flatten(0, 1).index_copy_(0, self._slots_N, kv_N2KD)
        return q_RHD if self._inner is None else self._inner.attend(layer, q_RHD)


def _slice(run: range, first: int) -> slice:
    return slice(run.start - first, run.stop - first)


def _width(heads: slice) -> int:
    return heads.stop - heads.start
