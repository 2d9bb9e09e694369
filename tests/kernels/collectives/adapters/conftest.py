"""The classes of `flashinfer.comm` that are bound, by the signatures and rules of its sources.

Ranks are threads that meet; sums are taken in whichever order, as the contract allows.
"""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch


@dataclass
class Meeting:
    """What ranks that are threads hand each other."""

    size: int
    held: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)

    def __post_init__(self):
        self.barrier = threading.Barrier(self.size, timeout=20)

    def gather(self, rank, x):
        self.held[rank] = x.clone()
        self.barrier.wait()
        found = [self.held[r] for r in range(self.size)]
        self.barrier.wait()
        return found


class Workspace:
    """What the three classes have in common: whole packs, one stream, no overlap."""

    def __init__(self, group, max_numel, dtype):
        assert max_numel % 8 == 0
        self.rank, self.meeting = group
        self.max_numel, self.dtype = max_numel, dtype
        self.rebound = self.destroyed = 0

    def rebind_stream(self):
        self.rebound += 1

    def destroy(self):
        self.destroyed += 1

    def gathered(self, inp, out, shape):
        assert self.supports(inp)
        assert tuple(out.shape) == shape
        assert out.is_contiguous()
        assert out.untyped_storage().data_ptr() != 0
        begin, end = inp.data_ptr(), inp.data_ptr() + inp.nbytes
        assert out.data_ptr() >= end or out.data_ptr() + out.nbytes <= begin
        self.meeting.calls.append(tuple(inp.shape))
        return self.meeting.gather(self.rank, inp)


class PcieIpcAllReduceWorkspace(Workspace):
    def __init__(
        self, group, max_numel, dtype=torch.bfloat16, max_blocks=128, profile=None,
        tune_batches=(1,), tune_cache=None,
    ):  # fmt: skip
        super().__init__(group, max_numel, dtype)

    def supports(self, inp):
        enough = 8 * self.meeting.size <= inp.numel() <= self.max_numel
        is_half = inp.dtype in (torch.bfloat16, torch.float16)
        return enough and is_half and inp.numel() % 8 == 0 and inp.is_contiguous()

    def all_reduce(self, inp, *, out=None, config=None, enable_pdl=False):
        parts = self.gathered(inp, out, tuple(inp.shape))
        return out.copy_(torch.stack(parts).float().sum(0))


class Shards(Workspace):
    def fits(self, inp, shard_numel):
        is_shaped = inp.dim() == 2 and inp.dtype is self.dtype and inp.is_contiguous()
        return is_shaped and 0 < shard_numel <= self.max_numel and shard_numel % 8 == 0


class PcieIpcAllGatherWorkspace(Shards):
    def __init__(
        self, group, max_numel, dtype=torch.bfloat16, max_blocks=64, tune_batches=(1,),
        tune_cache=None,
    ):  # fmt: skip
        super().__init__(group, max_numel, dtype)

    def supports(self, inp):
        return self.fits(inp, inp.numel())

    def all_gather(self, inp, *, out=None, config=None):
        shape = (inp.shape[0] * self.meeting.size, inp.shape[1])
        return out.copy_(torch.cat(self.gathered(inp, out, shape)))


class PcieIpcReduceScatterWorkspace(Shards):
    def __init__(
        self, group, max_numel, dtype=torch.bfloat16, max_blocks=64, tune_batches=(1,),
        tune_cache=None,
    ):  # fmt: skip
        super().__init__(group, max_numel, dtype)

    def supports(self, inp):
        size = self.meeting.size
        return inp.shape[0] % size == 0 and self.fits(inp, inp.numel() // size)

    def reduce_scatter(self, inp, *, out=None, config=None):
        shape = (inp.shape[0] // self.meeting.size, inp.shape[1])
        total = torch.stack(self.gathered(inp, out, shape)).float().sum(0)
        return out.copy_(total.view(self.meeting.size, *shape)[self.rank])


@pytest.fixture
def comm():
    """`flashinfer.comm` as far as it is bound."""
    return SimpleNamespace(
        PcieIpcAllReduceWorkspace=PcieIpcAllReduceWorkspace,
        PcieIpcAllGatherWorkspace=PcieIpcAllGatherWorkspace,
        PcieIpcReduceScatterWorkspace=PcieIpcReduceScatterWorkspace,
    )


@pytest.fixture
def make_meeting():
    """A meeting of ranks."""
    return Meeting
