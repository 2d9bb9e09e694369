"""FlashInfer's PCIe collectives as operations of a group: cut, padded and copied to their shapes.

Its kernels take whole packs of 16 bytes, up to a size that is fixed when a workspace is made, the
same on all ranks, and wait for peers without a time limit: the board's agreement before every
operation is what keeps a rank from waiting alone. Their launch configurations are FlashInfer's own
choice, from its tuning cache where there is one. Unverified on devices: run here against classes
with the same signatures.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from kernels.collectives.adapters.flashinfer import FORMS, unmet_flashinfer
from kernels.collectives.calls import Reduction
from kernels.collectives.errors import CollectiveError
from kernels.collectives.group import Group
from kernels.collectives.peer_memory import unmet_peers
from kernels.collectives.streams import StreamOrder

_PACK_BYTES = 16
_DTYPE = torch.bfloat16
Parts = Sequence[torch.Tensor]


class Workspaces:
    """FlashInfer's workspaces of a group, one for each operation that is bound.

    Tensors are contiguous with one dim and of the same dtype and sizes on all ranks, as agreed on
    the board beforehand. A workspace belongs to one stream: `changes_stream` makes the current
    stream wait for the one before, and says whether they differ.
    """

    def __init__(
        self,
        comm: Any,  # noqa: ANN401 - `flashinfer.comm`, a module of another project
        operations: Sequence[str],
        group: Group,
        process_group: Any,  # noqa: ANN401 - torch's own has no public class for it
        *,
        slot_bytes: int,
        device: torch.device,
        changes_stream: Callable[[], bool],
        close_group: Callable[[], None],
    ) -> None:
        """Make them, on every rank at once. Units: `slot_bytes` bounds what one call moves.

        Raises: ValueError of FlashInfer's, the same on all ranks, naming what it does not take.
        """
        self._group, self._changes_stream, self._close_group = group, changes_stream, close_group
        self._slot_bytes = slot_bytes // (_PACK_BYTES * group.size) * _PACK_BYTES * group.size
        made = {
            "group": process_group,
            "max_numel": self._slot_bytes // _DTYPE.itemsize,
            "dtype": _DTYPE,
        }
        self._workspaces: dict[str, Any] = {
            operation: getattr(comm, FORMS[operation].workspace)(**made) for operation in operations
        }
        scratch = (2, group.size, self._slot_bytes)
        self._given, self._taken = torch.empty(scratch, dtype=torch.uint8, device=device)

    def all_reduce(self, x_N: torch.Tensor, reduction: Reduction) -> None:
        """x added over all ranks. Numerics: FlashInfer's order, which depends on its kernel."""
        assert reduction == "sum"
        for part_N in x_N.split(self._slot_bytes // x_N.element_size()):
            given_B, taken_B = self._rows(self._padded(part_N.nbytes, self._group.size), 1)
            _fill(given_B[0], part_N)
            self._call("all_reduce", given_B.view(x_N.dtype), taken_B.view(x_N.dtype))
            part_N.copy_(taken_B[0].view(x_N.dtype)[: len(part_N)])

    def reduce_scatter(self, parts: Parts, out_N: torch.Tensor, reduction: Reduction) -> None:
        """out = parts[rank] added over all ranks; as `all_reduce`."""
        assert reduction == "sum"
        dtype, count = out_N.dtype, self._slot_bytes // out_N.element_size()
        for begin in range(0, max(map(len, parts)), count):
            pieces = [part_N[begin : begin + count] for part_N in parts]
            length = self._padded(max(piece_N.nbytes for piece_N in pieces), 1)
            given_RB, taken_B = self._rows(length, self._group.size)
            for row_B, piece_N in zip(given_RB, pieces, strict=True):
                _fill(row_B, piece_N)
            self._call("reduce_scatter", given_RB.view(dtype), taken_B[:1].view(dtype))
            target_N = out_N[begin : begin + count]
            target_N.copy_(taken_B[0].view(dtype)[: len(target_N)])

    def all_gather(self, parts: Parts) -> None:
        """Fill every part from its rank; bytes, so of any dtype."""
        raw = [part_N.view(torch.uint8) for part_N in parts]
        for begin in range(0, max(map(len, raw)), self._slot_bytes):
            pieces = [part_B[begin : begin + self._slot_bytes] for part_B in raw]
            length = self._padded(max(map(len, pieces)), 1)
            given_B, taken_RB = self._rows(length, self._group.size)
            _fill(given_B[0], pieces[self._group.rank])
            self._call("all_gather", given_B[:1].view(_DTYPE), taken_RB.view(_DTYPE))
            for rank in self._group.others:
                pieces[rank].copy_(taken_RB[rank, : len(pieces[rank])])

    def close(self) -> None:
        """Give everything back, on every rank at once."""
        for workspace in self._workspaces.values():
            workspace.destroy()
        self._workspaces.clear()
        self._close_group()

    def _padded(self, num_bytes: int, num_packs: int) -> int:
        """Whole packs, and at least as many as a call takes."""
        return max(-(-num_bytes // _PACK_BYTES), num_packs) * _PACK_BYTES

    def _rows(self, length: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Contiguous rows of `length` bytes to give from and to take into."""
        shape = num_rows, length
        count = num_rows * length
        return self._given.view(-1)[:count].view(shape), self._taken.view(-1)[:count].view(shape)

    def _call(self, operation: str, given: torch.Tensor, taken: torch.Tensor) -> None:
        workspace = self._workspaces[operation]
        if self._changes_stream():
            for each in self._workspaces.values():
                each.rebind_stream()
        if not workspace.supports(given):
            raise CollectiveError(
                f"{operation}: FlashInfer's workspace takes no {tuple(given.shape)} of "
                f"{given.dtype}; ask for another algorithm"
            )
        getattr(workspace, FORMS[operation].method)(given, out=taken)


def unmet_workspaces() -> str | None:
    """Why this process cannot open any of them; None where it can."""
    reasons = [unmet_flashinfer(operation) for operation in FORMS]
    return unmet_peers() if None in reasons else reasons[0]


def open_workspaces(group: Group, store: dist.Store, *, slot_bytes: int) -> Workspaces:
    """Those that the installed FlashInfer has. Raises: CollectiveError; as `Workspaces`."""
    return Workspaces(
        importlib.import_module("flashinfer.comm"),
        [operation for operation in FORMS if unmet_flashinfer(operation) is None],
        group,
        open_process_group(group, store, "cpu:gloo,cuda:nccl"),
        slot_bytes=slot_bytes,
        device=torch.device("cuda", torch.cuda.current_device()),
        changes_stream=StreamOrder().changes_stream,
        close_group=dist.destroy_process_group,
    )


def open_process_group(group: Group, store: dist.Store, backend: str) -> Any:  # noqa: ANN401
    """The group that FlashInfer finds its ranks by: torch's default one, of this process.

    Raises: CollectiveError where the process has one already: that may be of other ranks.
    """
    if dist.is_initialized():
        raise CollectiveError(
            f"flashinfer: this process has a default group of torch.distributed already, of "
            f"{dist.get_world_size()} ranks. Destroy it, or leave the transport out"
        )
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("flashinfer", store),
        rank=group.rank,
        world_size=group.size,
        timeout=timedelta(seconds=group.timeout_s),
    )
    return dist.group.WORLD


def _fill(row_B: torch.Tensor, part_N: torch.Tensor) -> None:
    """Write a part's bytes to the beginning of a row, and zeros behind it."""
    num_bytes = part_N.nbytes
    row_B[:num_bytes].copy_(part_N.view(torch.uint8))
    row_B[num_bytes:].zero_()
