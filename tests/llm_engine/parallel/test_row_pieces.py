"""Rows of all ranks in pieces: the sums of one piece, in as many turns, for any division."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernels.collectives.communicator import join
from kernels.collectives.group import Group
from llm_engine.parallel.row_pieces import RowPieces

CHANNELS = 6


@pytest.mark.parametrize("row_counts", [(5, 3), (4, 0), (1, 9)])
@pytest.mark.parametrize("count", [2, 4])
def test_pieces_give_the_rows_of_the_whole(
    row_counts: tuple[int, int], count: int, tmp_path: Path
) -> None:
    """Whole numbers, so that every order of a sum is exact."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(-4, 5, (2, CHANNELS, CHANNELS), generator=generator).float()
    rows = torch.randint(-4, 5, (sum(row_counts), CHANNELS), generator=generator).float()
    parts = rows.split(row_counts)

    def rank(index: int) -> tuple[torch.Tensor, list[int]]:
        seen: list[int] = []

        def term(x_MC: torch.Tensor) -> torch.Tensor:
            seen.append(len(x_MC))
            return x_MC @ weights[index]

        group = Group(rank=index, size=2, rendezvous=f"file://{tmp_path}/meeting", timeout_s=30)
        comm = join(group, transports=("shm",))
        found = RowPieces(count).over_all_rows(comm, parts[index], row_counts, term)
        comm.close()
        return found, seen

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(rank, range(2)))
    expected = (rows @ (weights[0] + weights[1])).split(row_counts)
    for (got, seen), want in zip(found, expected, strict=True):
        assert torch.equal(got, want)
        assert len(seen) == count
        assert sum(seen) == len(rows)
