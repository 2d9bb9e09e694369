"""Through pinned host memory: device tensors are copied down, exchanged by the host, copied up.

For machines whose devices cannot reach each other. Unverified on devices: the copies have not
run on hardware, and they do not overlap the exchange yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.algorithm import Algorithm
from kernels.collectives.fabric import Fabric

# Which argument of an operation holds what it writes.
_WRITTEN = {
    "all_reduce": 0,
    "reduce_scatter": 1,
    "all_gather": 0,
    "all_to_all": 1,
    "broadcast": 0,
}
Tensors = torch.Tensor | Sequence[torch.Tensor]


def run(on_host: Algorithm, fabric: Fabric, *arguments: Tensors | str | int) -> None:
    """Carry out the host's algorithm on copies of the tensors, and write its results back."""
    copies = [_down(argument) for argument in arguments]
    on_host.run(fabric, *copies)
    index = _WRITTEN[on_host.operation]
    for target, result in zip(_each(arguments[index]), _each(copies[index]), strict=True):
        target.copy_(result, non_blocking=True)


def _down(argument: Tensors | str | int) -> Tensors | str | int:
    if isinstance(argument, torch.Tensor):
        return host_copy(argument)
    if isinstance(argument, str | int):
        return argument
    return [host_copy(tensor) for tensor in argument]


def host_copy(x_N: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory, pinned where a device is to copy from it."""
    copy_N = torch.empty(x_N.shape, dtype=x_N.dtype, pin_memory=x_N.device.type != "cpu")
    return copy_N.copy_(x_N)


def _each(argument: Tensors | str | int) -> Sequence[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    assert not isinstance(argument, str | int)
    return argument
