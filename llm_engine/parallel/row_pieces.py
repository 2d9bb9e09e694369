"""All ranks' rows in pieces: one is computed while the next arrives and the one before returns."""

# N rows of this rank, M of all, C channels.

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernels.collectives.protocol import Communicator
from kernels.collectives.schedules.builders import split_gemm
from kernels.collectives.schedules.graph import Schedule
from kernels.collectives.schedules.threads import Actions, run_threads
from llm_engine.parallel.shares import ranges

Term = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RowPieces:
    """Into how many pieces ranks cut the rows that they have of a step; 1 hides nothing."""

    count: int = 1

    def over_all_rows(
        self, rows: Communicator, x_NC: torch.Tensor, row_counts: Sequence[int], term: Term
    ) -> torch.Tensor:
        """This rank's rows of the sum over ranks of what each `term` gives for all rows.

        Shapes: x and result (N, C); `term` maps (M, C) to (M, C), or rows of a piece alone.
        Numerics: exact sums, so that the bits are those of one piece where those of a row of
        `term` do not depend on the rows beside it.
        """
        if self.count == 1:
            return rows.reduce_scatter(term(rows.all_gather(x_NC)), row_counts)
        work = _Work(rows, x_NC, row_counts, term, self.count)
        schedule = _schedule(rows.group.size, self.count)
        run_threads(schedule, rows.group.rank, work.actions())
        return work.result()


@functools.lru_cache(maxsize=16)
def _schedule(size: int, num_pieces: int) -> Schedule:
    return split_gemm(size, 0.0, num_pieces, num_pieces, gather_bytes=num_pieces)


class _Work:
    """Pieces on their way: each is replaced by what becomes of it."""

    def __init__(
        self,
        rows: Communicator,
        x_NC: torch.Tensor,
        row_counts: Sequence[int],
        term: Term,
        num_pieces: int,
    ) -> None:
        self._rows, self._term = rows, term
        own = ranges(len(x_NC), num_pieces)
        self._pieces = [x_NC[run.start : run.stop] for run in own]
        cuts = [ranges(count, num_pieces) for count in row_counts]
        self._counts = [[len(runs[piece]) for runs in cuts] for piece in range(num_pieces)]

    def actions(self) -> Actions:
        # Whether inference mode is on belongs to a thread; the wire's has to be told.
        mode = torch.inference_mode(torch.is_inference_mode_enabled())
        actions: dict[str, Callable[[], object]] = {}
        for piece in range(len(self._pieces)):
            actions[f"gather.0.{piece}"] = mode(functools.partial(self._gather, piece))
            actions[f"gemm.0.{piece}"] = functools.partial(self._compute, piece)
            actions[f"scatter.0.{piece}"] = mode(functools.partial(self._scatter, piece))
        return actions

    def result(self) -> torch.Tensor:
        return torch.cat(self._pieces)

    def _gather(self, piece: int) -> None:
        self._pieces[piece] = self._rows.all_gather(self._pieces[piece].contiguous())

    def _compute(self, piece: int) -> None:
        self._pieces[piece] = self._term(self._pieces[piece])

    def _scatter(self, piece: int) -> None:
        self._pieces[piece] = self._rows.reduce_scatter(self._pieces[piece], self._counts[piece])
