"""Messages between two ranks that carry their shape: a receiver never takes the wrong one."""

from __future__ import annotations

import torch

from kernels.collectives.algorithm import link_of
from kernels.collectives.calls import DTYPES, dtype_name
from kernels.collectives.errors import MismatchedCall
from kernels.collectives.fabric import DEVICES, Fabric
from kernels.collectives.link import Link, Message
from kernels.errors import ShapeError

_HEADER_CELLS = 8
_MAX_DIMS = _HEADER_CELLS - 2
Letter = tuple[torch.Tensor, int]


class Letters:
    """Sends and receives on the fastest link that is open.

    Raises: MismatchedCall where a letter is not what its receiver expects; its payload was taken
    from the link, so that the next letter can be read.
    """

    def __init__(self, fabric: Fabric) -> None:
        transport = fabric.transports[0]
        self._link: Link = link_of(fabric, transport)
        self._device = DEVICES[transport]

    def exchange(self, outgoing: Letter | None, incoming: Letter | None) -> None:
        """One letter out, one in, or either alone."""
        for letter in (outgoing, incoming):
            self._check_peer(letter)
        header = None if outgoing is None else (self._to_wire(_header(outgoing[0])), outgoing[1])
        arrived = self._to_wire(torch.zeros(_HEADER_CELLS, dtype=torch.int64))
        expected = None if incoming is None else (arrived, incoming[1])
        self._move(header, expected)
        arrived = arrived.cpu()
        problem = incoming and self._problem(incoming, arrived)
        into = incoming and (
            _buffer(arrived, incoming[0].device) if problem else incoming[0].contiguous()
        )
        self._move(outgoing, None if into is None or incoming is None else (into, incoming[1]))
        if problem:
            raise MismatchedCall(problem)
        if incoming and into is not None and into.data_ptr() != incoming[0].data_ptr():
            incoming[0].copy_(into)

    def _move(self, outgoing: Letter | None, incoming: Letter | None) -> None:
        out = outgoing and Message(outgoing[0].contiguous().view(-1), outgoing[1])
        into = incoming and Message(incoming[0].view(-1), incoming[1])
        self._link.exchange(out, into)

    def _to_wire(self, header: torch.Tensor) -> torch.Tensor:
        return header.to(self._device)

    def _check_peer(self, letter: Letter | None) -> None:
        if letter is None:
            return
        x, peer = letter
        if peer == self._link.rank or not 0 <= peer < self._link.size:
            raise ShapeError(
                f"rank {self._link.rank} and rank {peer} of {self._link.size}: another"
            )
        if x.dtype not in DTYPES or x.dim() > _MAX_DIMS:
            raise ShapeError(f"a message of {x.dtype} {tuple(x.shape)}: {_MAX_DIMS} dims at most")

    def _problem(self, incoming: Letter, arrived: torch.Tensor) -> str | None:
        x, source = incoming
        if torch.equal(arrived, _header(x)):
            return None
        return (
            f"rank {source} sent {_words(arrived)}, rank {self._link.rank} expected "
            f"{_words(_header(x))}"
        )


def _header(x: torch.Tensor) -> torch.Tensor:
    cells = [DTYPES.index(x.dtype), x.dim(), *x.shape]
    return torch.tensor(cells + [0] * (_HEADER_CELLS - len(cells)), dtype=torch.int64)


def _shape(header: torch.Tensor) -> tuple[int, ...]:
    cells: list[int] = header.tolist()
    return tuple(cells[2 : 2 + cells[1]])


def _words(header: torch.Tensor) -> str:
    return f"{dtype_name(DTYPES[int(header[0])])} {_shape(header)}"


def _buffer(header: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(_shape(header), dtype=DTYPES[int(header[0])], device=device)
