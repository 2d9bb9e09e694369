"""Self-attention over tokens that lie on several ranks: heads travel, groups of them overlap."""

# S tokens of the clip, T of them on this rank, H heads, G of them in a rank's group, D head dim,
# P heads of rows.

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from kernels.collectives.schedules.builders import head_groups
from kernels.collectives.schedules.graph import Schedule
from kernels.collectives.schedules.threads import Actions, run_serially, run_threads
from kernels.collectives.schedules.torch_streams import run_streams
from kernels.ops.full_attention import full_attention
from video_engine.parallel.layout import Wire
from video_engine.parallel.mesh import Mesh
from video_engine.parallel.place import head_runs

Run = Callable[[Schedule, int, Actions], object]
# Output (S, G, D) of attention to all tokens, and its log-sum-exp.
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def executor_of(device: torch.device, num_groups: int) -> Run:
    """What carries a schedule out: one thread, threads, or the streams of a device (unverified)."""
    if num_groups == 1:
        return run_serially
    if device.type == "cpu":
        return run_threads
    return functools.partial(run_streams, device=device)


class HeadExchange:
    """Every rank attends with its own heads over all tokens: there and back, a group at a time.

    Numerics: values are moved and heads do not meet, so with the exact wire the result is the same
    bits for any number of groups and of ranks, and for both executors.
    Source: Jacobs et al. 2023, arXiv:2309.14509 (Ulysses).
    """

    def __init__(
        self,
        mesh: Mesh,
        num_heads: int,
        num_groups: int,
        wire: Wire,
        run: Run,
        attend: Attend = full_attention,
    ) -> None:
        """`run` carries out the schedule of one layer, `attend` is computed for each group."""
        self._mesh, self._run, self._attend = mesh, run, attend
        self._wire: Wire = wire
        self.groups = head_runs(num_heads, mesh.layout.ulysses, num_groups)
        self.schedule = head_groups(mesh.layout.ulysses, num_groups, 0.0, 0, 0)

    def __call__(
        self,
        q_THD: torch.Tensor,
        k_THD: torch.Tensor,
        v_THD: torch.Tensor,
        token_counts: Sequence[int],
    ) -> torch.Tensor:
        """Attention of this rank's tokens to all; `token_counts` are those of each rank.

        Shapes: q, k, v and the result (T, H, D) with T of this rank, which may be 0.
        Raises: what an exchange raised, once nothing of the run is left.
        """
        qkv = q_THD, k_THD, v_THD
        layer = _Layer(self._mesh, self._wire, self._attend, self.groups, qkv, token_counts)
        self._run(self.schedule, self._mesh.place.ulysses, layer.actions())
        return layer.joined()


class _Layer:
    """One layer's heads on their way. What a stream has written stays until the run is over."""

    def __init__(
        self,
        mesh: Mesh,
        wire: Wire,
        attend: Attend,
        groups: Sequence[Sequence[range]],
        qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        token_counts: Sequence[int],
    ) -> None:
        self._mesh, self._attend_group, self._groups = mesh, attend, groups
        self._wire: Wire = wire
        self._qkv, self._counts = qkv, token_counts
        self._rank = mesh.place.ulysses
        self._kept: list[torch.Tensor] = []
        self._mine: dict[int, torch.Tensor] = {}
        self._attended: dict[int, torch.Tensor] = {}
        self._returned: dict[int, torch.Tensor] = {}

    def actions(self) -> Actions:
        """One function for each node of `head_groups`."""
        # Whether gradients are kept belongs to a thread, and each stream may have its own.
        mode = torch.no_grad()
        found: dict[str, Callable[[], object]] = {}
        for group in range(len(self._groups)):
            found[f"arrive.{group}"] = mode(functools.partial(self._arrive, group))
            found[f"attend.{group}"] = mode(functools.partial(self._attend, group))
            found[f"return.{group}"] = mode(functools.partial(self._return, group))
        return found

    def joined(self) -> torch.Tensor:
        """The outputs of all heads for this rank's tokens."""
        q_THD = self._qkv[0]
        o_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        for group, heads in enumerate(self._groups):
            sizes = [len(q_THD) * len(run) for run in heads]
            for run, part_PD in zip(heads, self._returned[group].split(sizes), strict=True):
                shape = (len(q_THD), len(run), q_THD.shape[2])
                o_THD[:, run.start : run.stop] = part_PD.view(shape)
        return o_THD

    def _arrive(self, group: int) -> None:
        """This rank's tokens of everybody's heads go; all tokens of its own heads come."""
        heads = self._groups[group]
        parts = [
            torch.cat([x_THD[:, run.start : run.stop] for x_THD in self._qkv], 1).flatten(0, 1)
            for run in heads
        ]
        packed_PD = torch.cat(parts)
        self._kept.append(packed_PD)
        sizes = [len(part) for part in parts]
        self._mine[group], _ = self._mesh.arrive.all_to_all(packed_PD, sizes, contract=self._wire)

    def _attend(self, group: int) -> None:
        num_heads = len(self._groups[group][self._rank])
        mine_PD = self._mine[group]
        if num_heads == 0:
            self._attended[group] = mine_PD
            return
        mine_S3GD = mine_PD.view(sum(self._counts), 3 * num_heads, mine_PD.shape[1])
        o_SGD, _ = self._attend_group(*mine_S3GD.split(num_heads, 1))
        self._attended[group] = o_SGD.reshape(-1, mine_PD.shape[1])

    def _return(self, group: int) -> None:
        num_heads = len(self._groups[group][self._rank])
        sizes = [count * num_heads for count in self._counts]
        outputs_PD = self._attended[group]
        self._returned[group], _ = self._mesh.leave.all_to_all(
            outputs_PD, sizes, contract=self._wire
        )
