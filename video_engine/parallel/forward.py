"""One rank's part of every forward: own branches, own rows, gathered on all ranks."""

# R rows of an output, W values of a row.

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from video_engine.models.denoiser import Inputs, Outputs
from video_engine.models.device import finish
from video_engine.parallel.command import ForwardCommand
from video_engine.parallel.mesh import Mesh
from video_engine.parallel.place import Place, own_branches
from video_engine.parallel.rows import OwnRows, RowModel


class RankForward:
    """A rank's transformers and communicators. Not thread-safe: one forward at a time."""

    def __init__(self, parts: Mapping[str, RowModel], mesh: Mesh, device: torch.device) -> None:
        """`parts` are the model's transformers by name, on `device`."""
        self._parts, self._mesh, self._device = parts, mesh, device

    @torch.no_grad()
    def lead(
        self, command: ForwardCommand, shared: Inputs, branches: Sequence[Inputs]
    ) -> list[Outputs]:
        """Rank 0's part; what the stock transformer returns for each branch."""
        self._mesh.everyone.broadcast(command.packed(shared, branches, self._device))
        rows_RW = self._gathered(command, shared, branches)
        model = self._parts[command.part]
        split = self._by_branch(rows_RW, model.num_rows(shared), len(branches))
        return [
            model.whole(rows_RW, {**shared, **branch})
            for rows_RW, branch in zip(split, branches, strict=True)
        ]

    @torch.no_grad()
    def follow(self, data: bytes) -> None:
        """Another rank's part of a command that `lead` carries out at the same time."""
        command = ForwardCommand.decode(data)
        message = torch.empty(command.size_bytes, dtype=torch.uint8, device=self._device)
        self._gathered(command, *command.unpacked(self._mesh.everyone.broadcast(message)))
        finish(self._device)  # a rank says that it is done once its device is

    def rejoin(self) -> None:
        """Join the groups of the mesh anew, as new followers do at the same time."""
        self._mesh.renew()

    def close(self) -> None:
        """Close what the mesh joined."""
        self._mesh.close()

    def _gathered(
        self, command: ForwardCommand, shared: Inputs, branches: Sequence[Inputs]
    ) -> torch.Tensor:
        model, mesh = self._parts[command.part], self._mesh
        own = own_branches(branches, mesh.layout, mesh.place.cfg)
        found = [model({**shared, **branch}) for branch in own]
        nothing = torch.empty(0, model.width, dtype=model.dtype, device=self._device)
        return mesh.everyone.all_gather(torch.cat([nothing, *found]))

    def _by_branch(
        self, rows_RW: torch.Tensor, num_rows: int, num_branches: int
    ) -> list[torch.Tensor]:
        """The rows of all ranks in their order, put together for each branch."""
        layout = self._mesh.layout
        parts: list[list[torch.Tensor]] = [[] for _ in range(num_branches)]
        begin = 0
        for rank in range(layout.num_ranks):
            place = Place.of(layout, rank)
            count = len(OwnRows.of(num_rows, layout.ulysses, place.ulysses).run)
            for branch in own_branches(range(num_branches), layout, place.cfg):
                parts[branch].append(rows_RW[begin : begin + count])
                begin += count
        assert begin == len(rows_RW)
        return [torch.cat(part) for part in parts]
