"""Attention across ranks: the bits of attention on one, however tokens, heads and groups fall."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.collectives.schedules.threads import run_serially, run_threads
from kernels.ops.full_attention import full_attention
from video_engine.parallel.head_exchange import HeadExchange, executor_of
from video_engine.parallel.layout import VideoLayout
from video_engine.parallel.mesh import Mesh
from video_engine.parallel.place import runs

CPU = torch.device("cpu")


def attended(threads: ModuleType, qkv: list[torch.Tensor], layout: VideoLayout, run: Any) -> Any:
    """All ranks' outputs, joined; and each rank's exchange."""
    size, num_tokens = layout.num_ranks, len(qkv[0])
    own = runs(num_tokens, size)
    world = threads.ThreadWorld(size)
    meshes: list[Any] = [None] * size

    def work(rank: int) -> torch.Tensor:
        meshes[rank] = Mesh(world.communicator(rank), layout, world.join_part)
        exchange = HeadExchange(meshes[rank], qkv[0].shape[1], layout.groups or 1, layout.wire, run)
        mine = [x[own[rank].start : own[rank].stop] for x in qkv]
        return exchange(*mine, [len(piece) for piece in own])

    return torch.cat(world.run(work)), meshes


@settings(max_examples=40, deadline=None)
@given(
    num_tokens=st.integers(1, 23),
    heads=st.integers(1, 7),
    size=st.integers(2, 4),
    groups=st.integers(1, 3),
    run=st.sampled_from([run_serially, run_threads]),
    seed=st.integers(0, 9),
)
def test_the_bits_of_one_rank(
    threads: ModuleType, num_tokens: int, heads: int, size: int, groups: int, run: Any, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    qkv = [torch.randn(num_tokens, heads, 8, generator=generator) for _ in range(3)]
    layout = VideoLayout(ulysses=size, groups=groups)
    found, _ = attended(threads, qkv, layout, run)
    assert torch.equal(found, full_attention(*qkv)[0])


@pytest.mark.parametrize("wire", ["exact", "int8"])
def test_two_exchanges_a_group_each_way_on_communicators_of_their_own(
    threads: ModuleType, wire: Any
) -> None:
    qkv = [torch.randn(9, 5, 8) for _ in range(3)]
    _, meshes = attended(threads, qkv, VideoLayout(ulysses=2, groups=2, wire=wire), run_threads)
    for mesh in meshes:
        assert mesh.arrive is not mesh.leave
        assert mesh.arrive.calls == mesh.leave.calls == [("all_to_all", wire)] * 2


def test_groups_need_threads_and_one_group_none() -> None:
    assert executor_of(CPU, 1) is run_serially
    assert executor_of(CPU, 2) is run_threads
