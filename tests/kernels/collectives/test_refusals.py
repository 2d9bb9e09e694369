"""What is refused says which rank, which value and what was expected; then the group goes on."""

import pytest
import torch

from kernels.collectives.communicator import join
from kernels.collectives.group import Group


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has devices")
def test_transports_that_this_machine_cannot_have_are_refused_with_the_reason(tmp_path):
    group = Group(rank=0, size=1, rendezvous=f"file://{tmp_path / 'store'}")
    with pytest.raises(ValueError, match=r"nccl: (this build|torch sees)"):
        join(group, transports=("nccl",))
    with pytest.raises(ValueError, match="peer: torch sees no device"):
        join(group, transports=("peer",))
    with pytest.raises(
        ValueError, match="one or more of shm, gloo, tcp, nccl, peer, push, flashinfer, staged"
    ):
        join(group, transports=())


def test_bad_calls_are_refused_and_the_group_stays_usable(pair):
    said = pair.run("refusals")
    expected = [
        "ShapeError: all_reduce of torch.float64: takes float32, bfloat16, float16, int64",
        "ShapeError: all_reduce sum (exact) of int8 (3,): takes float32",
        "ShapeError: all_reduce sum (int8) of int64 (3,): takes float32, bfloat16, float16",
        "ImplUnavailable: all_reduce: 'gloo/library' was asked for",
        "ImplUnavailable: all_reduce has no 'nothing'; there are: shm/two_shot",
        "ShapeError: reduce_scatter on rank 0: rows (1, 1) of a tensor (3,); expected 2 sizes",
        "ShapeError: all_to_all on rank 0: rows (4, -1)",
        "ShapeError: broadcast from rank 9 of 2",
        "ShapeError: rank 0 and rank 0 of 2",
        "MismatchedCall: on rank 0: rank 1 calls all_reduce sum (exact) of float32 (4,); "
        "expected as rank 0: all_reduce sum (exact) of float32 (3,)",
        "MismatchedCall: on rank 0: rank 1 calls all_reduce sum (exact) of bfloat16 (3,)",
        "MismatchedCall: on rank 0: rank 1 calls broadcast (exact) of float32 (3,) from rank 1",
    ]
    for message, beginning in zip(said[0], expected, strict=True):
        assert message.startswith(beginning), message
    assert [m.partition(":")[0] for m in said[1]] == [m.partition(":")[0] for m in said[0]]
