"""Windowed attention over split rows is that over whole sequences, and little travels for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.ops.full_attention.reference import attend
from kernels.ops.paged_prefill.cpu import paged_prefill
from kernels.ops.paged_prefill.reference import causal_mask
from llm_engine.parallel.halo_exchange import SplitSequence, WindowAttention
from tests.llm_engine.parallel.test_ring_exchange import in_ranks

HEADS, KV, DIM = 4, 2, 8


def contiguous(past: int, count: int, size: int, *, is_turned: bool = False) -> SplitSequence:
    """A step of `count` rows in runs, behind a past in runs; either may be turned around."""
    ranks = range(size)[::-1] if is_turned else range(size)
    bounds = [past + i * count // size for i in range(size + 1)]
    runs = {rank: range(bounds[i], bounds[i + 1]) for i, rank in enumerate(ranks)}
    olds = [range(i * past // size, (i + 1) * past // size) for i in range(size)]
    return SplitSequence(
        tuple((olds[rank], runs[rank]) for rank in range(size)),
        tuple(runs[rank] for rank in range(size)),
    )


@given(
    st.integers(0, 60),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(1, 70),
    st.booleans(),
)
def test_a_rank_is_sent_what_it_sees_and_has_not_and_nothing_else(
    past: int, count: int, size: int, window: int, is_turned: bool
) -> None:
    sequence = contiguous(past, count, size, is_turned=is_turned)
    for rank in range(size):
        own = {p for run in sequence.held[rank] for p in run}
        needed = {
            key
            for query in sequence.queries[rank]
            for key in range(max(0, query - window + 1), query + 1)
        }
        sent = [p for source in range(size) for p in sequence.sent(source, rank, window)]
        assert sorted(sent) == sorted(needed - own)
        assert len(sent) <= window - 1


def test_runs_longer_than_the_window_have_one_neighbour() -> None:
    sequence = contiguous(0, 64, 4)
    sources = [
        {source for source in range(4) if sequence.sent(source, rank, 9)} for rank in range(4)
    ]
    assert sources == [set(), {0}, {1}, {2}]


def values_of(sequence: SplitSequence, generator: torch.Generator) -> dict[str, torch.Tensor]:
    end = max(run.stop for run in sequence.queries)
    return {
        name: torch.randn(end, heads, DIM, generator=generator)
        for name, heads in (("q", HEADS), ("k", KV), ("v", KV))
    }


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("window", [1, 5, 16, 200])
def test_split_rows_attend_as_whole_sequences(size: int, window: int, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(size)
    shapes = ((0, 41, False), (23, 2, True), (7, 1, False), (30, 30, True))
    sequences = [contiguous(p, n, size, is_turned=turned) for p, n, turned in shapes]
    values = [values_of(sequence, generator) for sequence in sequences]

    def work(comm: Any) -> tuple[torch.Tensor, int]:
        rank = comm.group.rank
        window_attention = WindowAttention(comm, sequences, window, paged_prefill, DIM**-0.5)
        q = [x["q"][list(s.queries[rank])] for s, x in zip(sequences, values, strict=True)]
        held = [[p for run in s.held[rank] for p in run] for s in sequences]
        kv = [torch.stack((x["k"][p], x["v"][p]), 1) for p, x in zip(held, values, strict=True)]
        received = window_attention.halo.num_received
        return window_attention(torch.cat(q), torch.cat(kv)), received

    for rank, (output, received) in enumerate(in_ranks(size, tmp_path, work)):
        expected = []
        for sequence, x in zip(sequences, values, strict=True):
            own = list(sequence.queries[rank])
            seen = causal_mask(len(x["q"]), len(x["k"]), window)[own]
            q, k, v = (x[name].double() for name in "qkv")
            expected.append(attend(q[own], k, v, scale=DIM**-0.5, is_seen_SN=seen)[0])
        torch.testing.assert_close(output.double(), torch.cat(expected), atol=2e-6, rtol=0)
        assert received <= len(sequences) * (window - 1)
