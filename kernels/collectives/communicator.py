"""The communicator of ranks on one host: agreement first, then the chosen algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
import torch.distributed as dist

from kernels.collectives.board import meet
from kernels.collectives.calls import Call, Contract, Reduction
from kernels.collectives.choice import AUTO, SEED, Knowledge
from kernels.collectives.conductor import CPU, Conductor, flat
from kernels.collectives.device_transports import DeviceFacts, agree_transports
from kernels.collectives.errors import MismatchedCall
from kernels.collectives.fabric import TRANSPORTS, Fabric, Transport, open_fabric
from kernels.collectives.group import Group, open_root_store, store_of_epoch
from kernels.collectives.lane import Handle
from kernels.collectives.letters import Letters
from kernels.collectives.reduction import piece_sizes, warm_up
from kernels.collectives.slots import SLOT_BYTES
from kernels.collectives.streams import make_current
from kernels.errors import ShapeError
from kernels.ledger import Ledger

P = ParamSpec("P")
T = TypeVar("T")


def join(
    group: Group,
    *,
    ledger: Ledger | None = None,
    transports: tuple[Transport, ...] = TRANSPORTS,
    knowledge: Knowledge = SEED,
    place: torch.device = CPU,
    on_device: Knowledge = SEED,
    slot_bytes: int = SLOT_BYTES,
    report: Callable[[str], None] = lambda _: None,
) -> HostCommunicator:
    """Meet the other ranks and open the transports between them.

    With a `place` on a device, its tensors move too: beside the `transports` of the host, those
    between devices are opened that all ranks can have, and `on_device` is what their choices rest
    on. It becomes the calling thread's current device, and the lane's.
    `report` hears the name of a transport that may hang before it is opened.

    All ranks pass the same transports, knowledge and slot size, and a place of one kind.
    Raises: StaleEpoch for a rank of an older founding; RankStalled naming who did not come;
    MismatchedCall naming ranks with another table than this one's; NoImplementation where the
    ranks' devices have no transport in common.
    """
    make_current(place)
    ledger = Ledger() if ledger is None else ledger
    warm_up()
    root_store = open_root_store(group)
    store = store_of_epoch(group, root_store)
    store.set(f"knowledge-{group.rank}", _digest(knowledge, on_device, place))
    meet(group, store, "join")
    _check_knowledge(group, store, _digest(knowledge, on_device, place), knowledge.evidence)
    if place.type != CPU.type:
        facts = DeviceFacts.read(place)
        between_devices, decision = agree_transports(group, store, facts, on_device)
        ledger.record(decision)
        transports = (*transports, *between_devices)
    fabric = open_fabric(group, store, transports, slot_bytes, report)
    conductor = Conductor(fabric, root_store, ledger, knowledge, on_device, place)
    return HostCommunicator(conductor)


class HostCommunicator:
    """See `kernels.collectives.protocol.Communicator`. Made by `join`."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._letters = Letters(conductor.fabric, conductor.ledger)

    @property
    def group(self) -> Group:
        """This rank's group."""
        return self._conductor.fabric.group

    @property
    def fabric(self) -> Fabric:
        """The open transports, for those who measure them."""
        return self._conductor.fabric

    @property
    def ledger(self) -> Ledger:
        """The decisions that were made on the way."""
        return self._conductor.ledger

    @property
    def knowledge(self) -> Knowledge:
        """What the choices of this communicator rest on."""
        return self._conductor.knowledge

    def all_reduce(
        self,
        x: torch.Tensor,
        *,
        contract: Contract = "exact",
        reduction: Reduction = "sum",
        algorithm: str = AUTO,
    ) -> torch.Tensor:
        """See the protocol."""

        def operation() -> torch.Tensor:
            call = _call("all_reduce", x, contract=contract, reduction=reduction)
            self._conductor.agree(call)
            flat_N = flat(x)
            self._conductor.run(call, x.nbytes, algorithm, flat_N, reduction)
            return _written(x, flat_N)

        return self._conductor.in_turn(operation)

    def reduce_scatter(
        self,
        x: torch.Tensor,
        sizes: Sequence[int] | None = None,
        *,
        contract: Contract = "exact",
        reduction: Reduction = "sum",
        algorithm: str = AUTO,
    ) -> torch.Tensor:
        """See the protocol."""

        def operation() -> torch.Tensor:
            rank = self.group.rank
            rows = list(piece_sizes(len(x), self.group.size) if sizes is None else sizes)
            self._conductor.check_rows("reduce_scatter", x, rows)
            call = _call("reduce_scatter", x, contract=contract, reduction=reduction, counts=rows)
            self._conductor.agree(call)
            parts = [flat(part) for part in x.contiguous().split(rows)]
            out = x.new_empty(rows[rank], *x.shape[1:])
            self._conductor.run(call, x.nbytes, algorithm, parts, out.view(-1), reduction)
            return out

        return self._conductor.in_turn(operation)

    def all_gather(
        self, x: torch.Tensor, *, contract: Contract = "exact", algorithm: str = AUTO
    ) -> torch.Tensor:
        """See the protocol."""

        def operation() -> torch.Tensor:
            if x.dim() == 0:
                raise ShapeError("all_gather of a scalar: give it a dim 0 to be joined along")
            call = _call("all_gather", x, contract=contract, counts=[len(x)])
            counts = [other.counts[0] for other in self._conductor.agree(call)]
            out = x.new_empty(sum(counts), *x.shape[1:])
            parts = list(out.split(counts))
            parts[self.group.rank].copy_(x)
            self._conductor.run(call, out.nbytes, algorithm, [flat(part) for part in parts])
            return out

        return self._conductor.in_turn(operation)

    def all_to_all(
        self,
        x: torch.Tensor,
        sizes: Sequence[int],
        *,
        contract: Contract = "exact",
        algorithm: str = AUTO,
    ) -> tuple[torch.Tensor, list[int]]:
        """See the protocol."""

        def operation() -> tuple[torch.Tensor, list[int]]:
            self._conductor.check_rows("all_to_all", x, sizes)
            call = _call("all_to_all", x, contract=contract, counts=sizes)
            table = [other.counts for other in self._conductor.agree(call)]
            arriving = [row[self.group.rank] for row in table]
            out = x.new_empty(sum(arriving), *x.shape[1:])
            outgoing = [flat(part) for part in x.contiguous().split(list(sizes))]
            incoming = [flat(part) for part in out.split(arriving)]
            row = x.shape[1:].numel()
            size_bytes = max(map(sum, table)) * row * x.element_size()
            longest = max(map(max, table)) * row
            self._conductor.run(call, size_bytes, algorithm, outgoing, incoming, longest)
            return out, arriving

        return self._conductor.in_turn(operation)

    def broadcast(self, x: torch.Tensor, root: int = 0, *, algorithm: str = AUTO) -> torch.Tensor:
        """See the protocol."""

        def operation() -> torch.Tensor:
            if not 0 <= root < self.group.size:
                raise ShapeError(f"broadcast from rank {root} of {self.group.size}")
            call = _call("broadcast", x, root=root)
            self._conductor.agree(call)
            flat_N = flat(x)
            self._conductor.run(call, x.nbytes, algorithm, flat_N, root)
            return _written(x, flat_N)

        return self._conductor.in_turn(operation)

    def send(self, x: torch.Tensor, to: int) -> None:
        """See the protocol."""
        self._conductor.in_turn(lambda: self._letters.exchange((x, to), None))

    def receive(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """See the protocol."""
        self._conductor.in_turn(lambda: self._letters.exchange(None, (x, source)))
        return x

    def swap(self, out: torch.Tensor, to: int, into: torch.Tensor, source: int) -> torch.Tensor:
        """See the protocol."""
        self._conductor.in_turn(lambda: self._letters.exchange((out, to), (into, source)))
        return into

    def barrier(self, timeout_s: float | None = None) -> None:
        """See the protocol."""
        board = self._conductor.fabric.board
        self._conductor.in_turn(lambda: board.step("barrier", timeout_s))

    def start(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        """See the protocol."""
        return self._conductor.lane.start(lambda: operation(*args, **kwargs))

    def close(self) -> None:
        """See the protocol."""
        self._conductor.lane.close()
        self._conductor.fabric.close()


def _digest(knowledge: Knowledge, on_device: Knowledge, place: torch.device) -> str:
    """What must be the same on all ranks: tables, and whose tensors move."""
    return f"{knowledge.digest}-{on_device.digest}-{place.type}"


def _check_knowledge(group: Group, store: dist.Store, digest: str, evidence: str) -> None:
    digests = [store.get(f"knowledge-{rank}").decode() for rank in range(group.size)]
    others = [rank for rank, other in enumerate(digests) if other != digest]
    if others:
        raise MismatchedCall(
            f"rank {group.rank} chooses by {evidence} ({digest}), ranks {others} by something "
            "else: give all ranks the same tables, and places of one kind"
        )


def _call(
    operation: str,
    x: torch.Tensor,
    *,
    contract: Contract = "exact",
    reduction: Reduction = "sum",
    root: int = 0,
    counts: Sequence[int] = (),
) -> Call:
    return Call(
        operation=operation,
        dtype=x.dtype,
        device=x.device.type,
        shape=tuple(x.shape),
        reduction=reduction,
        contract=contract,
        root=root,
        counts=tuple(counts),
    )


def _written(x: torch.Tensor, flat_N: torch.Tensor) -> torch.Tensor:
    """x, with what was computed in a copy of it written back."""
    return x if flat_N.data_ptr() == x.data_ptr() else x.copy_(flat_N.view(x.shape))
