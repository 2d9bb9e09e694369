"""Sliding-window attention over split rows: of other ranks' keys, the window's tail alone.

A rank whose rows begin at position p needs the `window - 1` keys before p, whoever has them; no
row before those travels. With runs longer than the window, they come from one neighbour.
"""

# N rows that a rank has, M rows that its queries see, R rows of its queries, H query heads,
# K key/value heads, D head dim.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from kernels.collectives.protocol import Communicator
from llm_engine.device import upload

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class SplitSequence:
    """Where one sequence's positions lie: `held[rank]` in rising runs, each position once.

    `queries[rank]` are those of the step, which the rank has too. Earlier ones may be missing
    where no window reaches them.
    """

    held: tuple[tuple[range, ...], ...]
    queries: tuple[range, ...]

    def seen(self, rank: int, window: int) -> range:
        """The positions that a rank's queries see: contiguous, up to its last query."""
        own = self.queries[rank]
        return range(max(0, own.start - window + 1), own.stop) if own else range(0)

    def sent(self, source: int, target: int, window: int) -> list[int]:
        """The positions that one rank sends to another, rising."""
        if source == target:
            return []
        seen = self.seen(target, window)
        return [position for run in self.held[source] for position in run if position in seen]


class WindowHalo:
    """The keys and values that a rank's queries see, fetched in one exchange for a layer.

    Exact: values are moved. Cost: a rank receives at most `window - 1` rows of each sequence.
    """

    def __init__(
        self,
        cp: Communicator,
        sequences: Sequence[SplitSequence],
        window: int,
        device: torch.device = _CPU,
    ) -> None:
        """All ranks give the same sequences; `device` is where rows are.

        Raises: ValueError for a window below 1.
        """
        if window < 1:
            raise ValueError(f"window is {window}: a row sees itself at least, so take 1 or more")
        self._cp = cp
        rank, size = cp.group.rank, cp.group.size
        bounds = [0, *accumulate(sum(map(len, s.held[rank])) for s in sequences)]
        rows = [
            {p: row for row, p in enumerate((p for run in s.held[rank] for p in run), first)}
            for s, first in zip(sequences, bounds, strict=False)
        ]
        to = [
            [
                row[p]
                for s, row in zip(sequences, rows, strict=True)
                for p in s.sent(rank, t, window)
            ]
            for t in range(size)
        ]
        self._sizes = [len(each) for each in to]
        sent = [row for each in to for row in each]
        self._sent = upload(sent, torch.int64, device)
        self.num_received = sum(
            len(s.sent(source, rank, window)) for s in sequences for source in range(size)
        )
        # Behind the rank's own rows come those of each source, sequence after sequence.
        place, places = bounds[-1], [dict(row) for row in rows]
        for source in range(size):
            for s, known in zip(sequences, places, strict=True):
                for position in s.sent(source, rank, window):
                    known[position] = place
                    place += 1
        seen = [
            [known[p] for p in s.seen(rank, window)]
            for s, known in zip(sequences, places, strict=True)
        ]
        self.counts = [len(each) for each in seen]
        rows_seen = [p for each in seen for p in each]
        self._seen_M = upload(rows_seen, torch.int64, device)

    def __call__(self, kv_N2KD: torch.Tensor) -> torch.Tensor:
        """Rows (M, 2, K, D) that the rank's queries see, sequence after sequence, rising.

        Shapes: kv (N, 2, K, D), the rank's rows in the order of `held`.
        """
        received, _ = self._cp.all_to_all(kv_N2KD.index_select(0, self._sent), self._sizes)
        return torch.cat((kv_N2KD, received)).index_select(0, self._seen_M)


class WindowAttention:
    """Attention of a rank's queries, each to itself and the `window - 1` positions before it."""

    def __init__(
        self,
        cp: Communicator,
        sequences: Sequence[SplitSequence],
        window: int,
        paged_prefill: Callable[..., Any],
        scale: float,
        device: torch.device = _CPU,
    ) -> None:
        """`paged_prefill` as in `kernels.ops`; `device` as in `WindowHalo`."""
        self.halo = WindowHalo(cp, sequences, window, device)
        self._window, self._scale, self._attend = window, scale, paged_prefill
        rank = cp.group.rank
        counts = [len(sequence.queries[rank]) for sequence in sequences]
        self._query_runs = list(pairwise([0, *accumulate(counts)]))
        self._key_runs = list(pairwise([0, *accumulate(self.halo.counts)]))

    def __call__(self, q_RHD: torch.Tensor, kv_N2KD: torch.Tensor) -> torch.Tensor:
        """Shapes: q (R, H, D), turned; kv as `WindowHalo` takes it; result (R, H, D)."""
        kv_M2KD = self.halo(kv_N2KD)
        outputs = [q_RHD[:0]]
        for queries, keys in zip(self._query_runs, self._key_runs, strict=True):
            if queries[0] == queries[1]:
                continue
            place = q_RHD.device
            o_RHD, _ = self._attend(
                q_RHD[slice(*queries)],
                kv_M2KD[slice(*keys)].unsqueeze(0),  # one page
                upload([0, queries[1] - queries[0]], torch.int32, place),
                upload([keys[1] - keys[0]], torch.int32, place),
                torch.zeros(1, 1, dtype=torch.int32, device=place),
                scale=self._scale,
                window=self._window,
            )
            outputs.append(o_RHD)
        return torch.cat(outputs)
