"""Messages between two ranks that carry their shape: a receiver never takes the wrong one."""

from __future__ import annotations

import torch

from kernels.collectives.algorithm import has_link, link_of
from kernels.collectives.calls import DTYPES, dtype_name
from kernels.collectives.errors import MismatchedCall
from kernels.collectives.fabric import DEVICES, EVIDENCE, Fabric, Transport
from kernels.collectives.link import Message
from kernels.collectives.staged import host_copy
from kernels.errors import NoImplementation, ShapeError
from kernels.ledger import Decision, Ledger, Rejection
from kernels.spec import Tier

_HEADER_CELLS = 8
_MAX_DIMS = _HEADER_CELLS - 2
Letter = tuple[torch.Tensor, int]


class Letters:
    """Sends and receives on the first open link of those tensors' device.

    Headers are the host's where it has a link, so that only payloads wait for a device. Payloads
    of devices go through the host's memory where no link between devices is open.
    Raises: MismatchedCall where a letter is not what its receiver expects; its payload was taken
    from the link, so that the next letter can be read. NoImplementation without any link.
    """

    def __init__(self, fabric: Fabric, ledger: Ledger) -> None:
        """`ledger` is told at the first payload of a device how such payloads travel."""
        self._fabric, self._ledger = fabric, ledger
        self._rank, self._size = fabric.group.rank, fabric.group.size
        self._has_told = False

    def exchange(self, outgoing: Letter | None, incoming: Letter | None) -> None:
        """One letter out, one in, or either alone; tensors of both are of one kind of device."""
        for letter in (outgoing, incoming):
            self._check_peer(letter)
        arrived = self._swap_headers(outgoing, incoming)
        problem = incoming and self._problem(incoming, arrived)
        into = incoming and (
            _buffer(arrived, incoming[0].device) if problem else incoming[0].contiguous()
        )
        self._move(outgoing, None if into is None or incoming is None else (into, incoming[1]))
        if problem:
            raise MismatchedCall(problem)
        if incoming and into is not None and into.data_ptr() != incoming[0].data_ptr():
            incoming[0].copy_(into)

    def _swap_headers(self, outgoing: Letter | None, incoming: Letter | None) -> torch.Tensor:
        """What the other rank says of its letter, in the host's memory."""
        transport = self._linked("cpu") or self._linked("cuda")
        if transport is None:
            raise NoImplementation(
                f"a message between ranks: none of {', '.join(self._fabric.transports)} carries any"
            )
        device = DEVICES[transport]
        arrived = torch.zeros(_HEADER_CELLS, dtype=torch.int64, device=device)
        out = outgoing and Message(_header(outgoing[0]).to(device), outgoing[1])
        into = incoming and Message(arrived, incoming[1])
        link_of(self._fabric, transport).exchange(out, into)
        return arrived.cpu()

    def _move(self, outgoing: Letter | None, incoming: Letter | None) -> None:
        out = outgoing and Message(outgoing[0].contiguous().view(-1), outgoing[1])
        into = incoming and Message(incoming[0].view(-1), incoming[1])
        kind = next(m.values_N.device.type for m in (out, into) if m)
        transport = self._linked(kind)
        if kind != "cpu":
            self._tell(transport)
        if transport is None:
            self._move_staged(out, into)
        else:
            link_of(self._fabric, transport).exchange(out, into)

    def _move_staged(self, out: Message | None, into: Message | None) -> None:
        """Down to the host, over its link, and up again."""
        transport = self._linked("cpu")
        assert transport is not None, "headers would not have come without a link"
        down = out and Message(host_copy(out.values_N), out.rank)
        arrived_N = into and host_copy(into.values_N)
        up = None if arrived_N is None or into is None else Message(arrived_N, into.rank)
        link_of(self._fabric, transport).exchange(down, up)
        if into is not None and arrived_N is not None:
            into.values_N.copy_(arrived_N, non_blocking=True)

    def _linked(self, kind: str) -> Transport | None:
        """The first open transport that carries messages of such tensors."""
        for transport in self._fabric.transports:
            if DEVICES[transport] == kind and has_link(transport):
                return transport
        return None

    def _tell(self, transport: Transport | None) -> None:
        if self._has_told:
            return
        self._has_told = True
        staged = f"staged, over {self._linked('cpu')}"
        reason, rejected = "no open transport carries messages between two devices", ()
        if transport is not None:
            reason = "carries messages between two devices"
            rejected = (Rejection(candidate=staged, reasons=("goes through the host",)),)
        self._ledger.record(
            Decision(
                kind="collective",
                where=f"between {self._size} ranks",
                what="messages between devices",
                asked="auto",
                chosen=transport or staged,
                tier=Tier.VENDOR,
                source="default",
                reasons=(reason,),
                rejected=rejected,
                evidence=EVIDENCE[transport or "staged"],
            )
        )

    def _check_peer(self, letter: Letter | None) -> None:
        if letter is None:
            return
        x, peer = letter
        if peer == self._rank or not 0 <= peer < self._size:
            raise ShapeError(f"rank {self._rank} and rank {peer} of {self._size}: another")
        if x.dtype not in DTYPES or x.dim() > _MAX_DIMS:
            raise ShapeError(f"a message of {x.dtype} {tuple(x.shape)}: {_MAX_DIMS} dims at most")

    def _problem(self, incoming: Letter, arrived: torch.Tensor) -> str | None:
        x, source = incoming
        if torch.equal(arrived, _header(x)):
            return None
        return (
            f"rank {source} sent {_words(arrived)}, rank {self._rank} expected {_words(_header(x))}"
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
