"""Overlapped layers: the bits of the same chunks in turn, failures that leave no thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.collectives.alone import Alone
from kernels.collectives.communicator import HostCommunicator, join
from kernels.collectives.errors import RankStalled
from kernels.collectives.group import Group
from llm_engine.layers.step import Step
from llm_engine.parallel.overlap import OverlappedLayers, TokenChunk, token_split_layers
from llm_engine.parallel.overlap_context import OverlappedContext, share_rows

CHANNELS, LAYERS = 24, 3
NOTHING = Step(torch.empty(0, dtype=torch.int64), lambda *_: pytest.fail("no attention here"))


class Terms:
    """A rank's terms: products with matrices of its own; the first reads the rows before it."""

    num_layers = LAYERS

    def __init__(self, rank: int, fail_at: tuple[str, int] | None = None) -> None:
        generator = torch.Generator().manual_seed(rank)
        self._matrices = torch.randn(2 * LAYERS, CHANNELS, CHANNELS, generator=generator) / 5
        self._seen: dict[int, list[torch.Tensor]] = {}
        self._fail_at = fail_at

    def attention_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        self._raise("attention", layer)
        rows = self._seen.setdefault(layer, [])
        rows.append(x_NC)
        earlier = torch.cat(rows).cumsum(0)[-len(x_NC) :]
        return earlier @ self._matrices[2 * layer]

    def mlp_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        self._raise("mlp", layer)
        return torch.tanh(x_NC @ self._matrices[2 * layer + 1])

    def _raise(self, part: str, layer: int) -> None:
        if (part, layer) == self._fail_at:
            raise ArithmeticError(f"{part} of layer {layer} failed")


@pytest.fixture
def as_ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """Run a function on the communicators of two ranks, which are threads of this process."""
    number = iter(range(100))

    def run(function: Callable[[HostCommunicator], Any], **group: Any) -> list[Any]:
        meeting = f"file://{tmp_path}/meeting-{next(number)}"

        def rank(index: int) -> Any:
            torch.set_num_threads(1)
            given = {"timeout_s": 20.0, **group}
            comm = join(Group(rank=index, size=2, rendezvous=meeting, **given), transports=("shm",))
            try:
                return function(comm)
            finally:
                comm.close()

        with ThreadPoolExecutor(2) as threads:
            futures = [threads.submit(rank, index) for index in range(2)]
            return [future.exception() or future.result() for future in futures]

    return run


def computed(comm: Any, num_chunks: int, *, is_overlapped: bool, **options: Any) -> torch.Tensor:
    x_NC = torch.randn(30, CHANNELS, generator=torch.Generator().manual_seed(9))
    chunks = [TokenChunk(part, NOTHING) for part in x_NC.tensor_split(num_chunks)]
    layers = OverlappedLayers(Terms(comm.group.rank), comm, **options)
    with torch.inference_mode():
        layers(chunks, is_overlapped=is_overlapped)
    return torch.cat([chunk.x_NC for chunk in chunks])


@pytest.mark.parametrize("contract", ["exact", "int8"])
def test_bits_are_those_of_the_same_chunks_in_turn(as_ranks: Any, contract: str) -> None:
    def both(comm: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            tuple(
                computed(comm, count, is_overlapped=flag, contract=contract)
                for flag in (False, True)
            )
            for count in (1, 2, 3, 5)
        ]

    first, second = as_ranks(both, rate_bytes_s=2e6)
    for (turn, hidden), (other_turn, other_hidden) in zip(first, second, strict=True):
        assert torch.equal(turn, hidden)
        assert torch.equal(turn, other_turn), "ranks differ"
        assert torch.equal(hidden, other_hidden), "ranks differ"


def test_the_sum_is_that_of_both_ranks(as_ranks: Any) -> None:
    found, _ = as_ranks(lambda comm: computed(comm, 2, is_overlapped=True))
    x_NC = torch.randn(30, CHANNELS, generator=torch.Generator().manual_seed(9))
    ranks = [Terms(rank) for rank in range(2)]
    for layer in range(LAYERS):
        for update in ("attention_update", "mlp_update"):
            x_NC = x_NC + sum(getattr(rank, update)(layer, x_NC, NOTHING) for rank in ranks)
    torch.testing.assert_close(found, x_NC, rtol=1e-4, atol=1e-3)


def test_transfers_hide_under_computation(as_ranks: Any) -> None:
    """On a link that sleeps, some reduction runs while the other chunk is computed."""

    class Slow(Terms):
        def mlp_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
            threading.Event().wait(0.02)
            return super().mlp_update(layer, x_NC, step)

    def ran(comm: Any) -> Any:
        x_NC = torch.ones(40, CHANNELS)
        chunks = [TokenChunk(part, NOTHING) for part in x_NC.tensor_split(2)]
        return OverlappedLayers(Slow(comm.group.rank), comm)(chunks)

    nodes, _ = as_ranks(ran, latency_s=5e-3)
    computing = [r for r in nodes if r.node.kind == "compute"]
    sending = [r for r in nodes if r.node.kind == "collective"]
    assert any(
        s.begin_s < c.end_s and c.begin_s < s.end_s and s.node.name != f"reduce_{c.node.name}"
        for s in sending
        for c in computing
    )


@pytest.mark.parametrize("place", [("attention", 0), ("mlp", 1), ("attention", 2)])
def test_a_failing_rank_raises_and_leaves_no_thread(as_ranks: Any, place: tuple[str, int]) -> None:
    def fails(comm: Any) -> list[str]:
        terms = Terms(comm.group.rank, fail_at=place if comm.group.rank == 1 else None)
        chunks = [TokenChunk(torch.ones(4, CHANNELS), NOTHING) for _ in range(2)]
        error = ArithmeticError if comm.group.rank == 1 else RankStalled
        with pytest.raises(error) as caught:
            OverlappedLayers(terms, comm)(chunks)
        return caught.value.__notes__

    healthy, failed = as_ranks(fails, timeout_s=1.0)
    assert not [t for t in threading.enumerate() if t.name.startswith("stream-")]
    part, layer = place
    assert failed[0].startswith(f"in node {part}.{layer}.")
    assert healthy[0].startswith("in node reduce_")


def test_one_rank_needs_no_case_of_its_own() -> None:
    assert torch.equal(
        computed(Alone(), 3, is_overlapped=True), computed(Alone(), 3, is_overlapped=False)
    )


@given(num_tokens=st.integers(0, 200), size=st.integers(1, 8), num_chunks=st.integers(1, 4))
def test_pieces_cover_a_prompt_once_and_evenly(num_tokens: int, size: int, num_chunks: int) -> None:
    turns = share_rows(num_tokens, size, num_chunks)
    pieces = [piece for turn in turns for piece in turn]
    tokens = sorted(t for p in pieces for t in range(p.start, p.start + p.num_tokens))
    assert tokens == list(range(num_tokens))
    lengths = [piece.num_tokens for piece in pieces]
    assert max(lengths) - min(lengths) <= 1
    if num_chunks % 2 == 0:
        starts = [sum(turn[rank].start for turn in turns) for rank in range(size)]
        assert max(starts) - min(starts) <= num_chunks, "a rank has the later tokens"


class Rows:
    """Layers whose attention is a sum over all rows so far."""

    num_layers = LAYERS

    def __init__(self, rank: int, num_chunks: int, num_tokens: int = 30) -> None:
        self._turns = share_rows(num_tokens, 2, num_chunks)
        self._cache = torch.zeros(LAYERS, num_tokens, 2, 1, CHANNELS)
        self.pieces = [turn[rank] for turn in self._turns]

    def project(self, layer: int, chunk: int, x_NC: torch.Tensor) -> torch.Tensor:
        return torch.stack((x_NC, x_NC * 2), 1).unsqueeze(2)

    def attend(
        self, layer: int, chunk: int, x_NC: torch.Tensor, kv_M2KD: torch.Tensor
    ) -> torch.Tensor:
        first = 0
        for piece in self._turns[chunk]:
            rows = kv_M2KD[first : first + piece.num_tokens]
            self._cache[layer, piece.start : piece.start + piece.num_tokens] = rows
            first += piece.num_tokens
        own = self.pieces[chunk]
        sums = self._cache[layer].sum((1, 2)).cumsum(0)[own.start : own.start + own.num_tokens]
        return x_NC + torch.tanh(sums)


def test_ranks_have_an_early_and_a_late_piece() -> None:
    assert [p.start for p in Rows(0, 2).pieces] == [0, 22]
    assert [p.start for p in Rows(1, 2).pieces] == [7, 15]


@pytest.mark.parametrize("num_chunks", [1, 2, 4])
def test_rows_over_ranks_equal_rows_on_one(as_ranks: Any, num_chunks: int) -> None:
    x_NC = torch.randn(30, CHANNELS, generator=torch.Generator().manual_seed(4)) / 9

    def rows(comm: Any) -> tuple[list[torch.Tensor], list[Any]]:
        found = []
        for is_overlapped in (False, True):
            layers = Rows(comm.group.rank, num_chunks)
            xs = [x_NC[p.start : p.start + p.num_tokens] for p in layers.pieces]
            with torch.inference_mode():
                OverlappedContext(layers, comm)(xs, is_overlapped=is_overlapped)
            found.append(torch.cat(xs))
        return found, layers.pieces

    expected = x_NC
    for _ in range(LAYERS):
        sums = torch.stack((expected, expected * 2), 1).unsqueeze(2).sum((1, 2)).cumsum(0)
        expected = expected + torch.tanh(sums)
    for (turn, hidden), pieces in as_ranks(rows, rate_bytes_s=2e6):
        assert torch.equal(turn, hidden)
        own = torch.cat([torch.arange(p.start, p.start + p.num_tokens) for p in pieces])
        assert torch.equal(hidden, expected[own])


def test_the_schedule_carries_the_bytes_of_its_chunks() -> None:
    schedule = token_split_layers(2, 3, 4, wire_bytes=400)
    sent = [n.size_bytes for n in schedule.nodes if n.kind == "collective" and n.rank == 0]
    assert sent == [100] * (2 * 3 * 4)
