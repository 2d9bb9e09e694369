"""One rank's part of every step: carries out the commands of rank 0."""

# S rows with logits, V vocabulary.

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.protocol import Communicator
from kernels.ledger import Ledger
from llm_engine.cache.tensor_storage import TensorStorage
from llm_engine.config import EngineConfig
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.bound_ops import BoundOps, bind_ops
from llm_engine.layers.native import NativeCache
from llm_engine.layers.op_choice import OpSizes
from llm_engine.parallel.layout import Layout
from llm_engine.parallel.loading import Share, load_share
from llm_engine.parallel.mesh import Groups, JoinPart, Mesh, axis_ranks, join_part
from llm_engine.parallel.overlap_probe import Prober
from llm_engine.parallel.overlap_steps import OverlappedSteps, can_overlap
from llm_engine.parallel.phase_steps import PhaseSteps
from llm_engine.parallel.rank_ops import RankOps
from llm_engine.parallel.shares import cached_heads
from llm_engine.parallel.step_command import BrokenCommand, Phase, StepCommand

LOAD_TIMEOUT_S = 900.0  # ranks read their weights from one disk, and none is ahead for long


class RankExecutor:
    """A rank's weights, cache and communicators. Not thread-safe: one command at a time.

    Invariant: commands come with rising numbers, each once.
    """

    def __init__(
        self,
        share: Share,
        ops: BoundOps,
        groups: Groups,
        num_pages: int,
        page_size: int,
        ledger: Ledger,
    ) -> None:
        """All ranks build theirs at the same time: groups of the layout's axes are joined here.

        The ledger is told what is decided while steps run.
        """
        cache: PagedCache | NativeCache
        if ops.is_native:
            cache = NativeCache(share.cached, num_pages, page_size)
        else:
            cache = PagedCache(share.cached, num_pages, page_size, share.dtype)
        self.storage = TensorStorage(cache.layers, cache.reservations)
        self._groups = groups
        prefill, decode = groups.meshes(share.layouts)

        def steps(layout: Layout, mesh: Mesh) -> PhaseSteps:
            rank_ops = RankOps(share.whole, share.layouts, layout, mesh, ops)
            along = axis_ranks(layout, mesh.world.group.rank, "cp")
            cp_heads = [cached_heads(share.whole, layout, rank) for rank in along]
            overlap = None
            if can_overlap(layout):
                cp = mesh.cp if layout.cp > 1 else None
                prober = Prober(share.cached, ops, share.model.rotary, page_size, cp)
                overlap = OverlappedSteps(share.model, rank_ops, prober, ledger)
            return PhaseSteps(share.model, cache, ops, rank_ops, cp_heads, overlap)

        self._steps: dict[Phase, PhaseSteps] = {
            "prefill": steps(share.layouts.prefill, prefill),
            "decode": steps(share.layouts.decode, decode),
        }
        self._saved: dict[int, Sequence[torch.Tensor]] = {}
        self._last = -1

    @torch.inference_mode()
    def execute(self, command: StepCommand) -> torch.Tensor | None:
        """Compute this rank's share of a step, in the layout of its phase.

        Returns float32 logits (S, V) on rank 0 if there are such rows, None elsewhere.
        Raises: BrokenCommand for one out of order; what the communicator raises where ranks are
            lost, stalled or disagree.
        """
        if command.sequence <= self._last:
            raise BrokenCommand(f"command {command.sequence} after command {self._last}")
        self._last = command.sequence
        self._move(command)
        if not command.token_ids:
            return None
        return self._steps[command.phase].run(command)

    def renew(self) -> None:
        """Join the groups of the layout's axes anew; see `Groups.renew`."""
        self._groups.renew()
        for steps in self._steps.values():
            steps.renew()

    def close(self) -> None:
        """Close the communicators that this rank opened beside the one it was given."""
        self._groups.close()

    def _move(self, command: StepCommand) -> None:
        for move in command.moves:
            if move.kind == "save":
                self._saved[move.ticket] = self.storage.copy_out(0, move.pages)
            elif move.kind == "load":
                self.storage.copy_in(0, move.pages, self._saved[move.ticket])
            elif move.kind == "drop":
                # Unknown where it was saved before this rank was started in another's place.
                self._saved.pop(move.ticket, None)
            elif move.kind == "copy":
                self.storage.copy(0, *move.pages)
            else:
                self.storage.give_back(0, move.pages)


def load_rank(
    config: EngineConfig, communicator: Communicator, join_axis: JoinPart = join_part
) -> RankExecutor:
    """Read the share of a follower (rank > 0) of the layout in `config.layout`.

    Meets rank 0, which calls `LLMEngine.load(config, ranks=...)` at the same time.
    Raises: InvalidConfig where layout, model and number of ranks do not fit one another.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    share = load_share(config, communicator.group)
    communicator.barrier(LOAD_TIMEOUT_S)
    numbers = communicator.broadcast(torch.zeros(3, dtype=torch.int64)).tolist()
    num_pages, context, chunk_tokens = numbers
    sizes = OpSizes(
        chunk_tokens=chunk_tokens,
        num_seqs=config.max_num_seqs,
        context=context,
        page_size=config.page_size,
    )
    ledger = Ledger()
    ops = bind_ops(
        share.cached,
        share.dtype,
        sizes,
        asked=config.kernels,
        ledger=ledger,
        is_native=share.is_packed,
        has_ranks=True,
    )
    return RankExecutor(
        share, ops, Groups(communicator, join_axis), num_pages, config.page_size, ledger
    )
