"""One rank alone behaves as a group in which everything is its own."""

import pytest
import torch

from kernels.collectives.alone import Alone
from kernels.collectives.communicator import HostCommunicator
from kernels.collectives.int8 import reference_all_reduce
from kernels.collectives.protocol import Communicator
from kernels.errors import ShapeError


def accepts(communicator: type[Communicator]) -> type[Communicator]:
    return communicator


def test_both_communicators_have_every_method_of_the_protocol():
    names = [name for name in vars(Communicator) if not name.startswith("_")]
    for kind in (accepts(Alone), accepts(HostCommunicator)):
        assert all(hasattr(kind, name) or name == "group" for name in names)


def test_everything_is_its_own():
    alone, x = Alone(), torch.randn(5, 3)
    assert torch.equal(alone.all_reduce(x.clone()), x)
    assert torch.equal(alone.reduce_scatter(x, [5]), x)
    assert torch.equal(alone.all_gather(x), x)
    moved, counts = alone.all_to_all(x, [5])
    assert torch.equal(moved, x)
    assert counts == [5]
    assert torch.equal(alone.broadcast(x), x)
    assert torch.equal(alone.swap(x, 0, torch.empty_like(x), 0), x)
    assert torch.equal(alone.start(alone.all_gather, x).wait(), x)
    alone.barrier()
    alone.close()


def test_int8_rounds_here_too():
    x = torch.randn(300)
    assert torch.equal(Alone().all_reduce(x.clone(), contract="int8"), reference_all_reduce([x])[0])
    gathered = Alone().all_gather(x, contract="int8")
    assert not torch.equal(gathered, x)
    assert (gathered - x).abs().max() <= x.abs().max() / 127 / 2 * 1.01


def test_others_are_refused():
    for bad in (
        lambda: Alone().send(torch.ones(1), 1),
        lambda: Alone().receive(torch.ones(1), 1),
        lambda: Alone().broadcast(torch.ones(1), 1),
        lambda: Alone().all_to_all(torch.ones(3), [2]),
    ):
        with pytest.raises(ShapeError):
            bad()
