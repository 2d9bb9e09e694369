"""One rank's part of every step: carries out the commands of rank 0."""

# S rows with logits, V vocabulary.

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.protocol import Communicator
from kernels.ledger import Ledger
from llm_engine.cache.tensor_storage import TensorStorage
from llm_engine.config import EngineConfig
from llm_engine.device import EngineDevice
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.bound_ops import BoundOps, bind_ops
from llm_engine.layers.invariance import make_invariant
from llm_engine.layers.native import NativeCache
from llm_engine.layers.op_choice import OpSizes
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.exchange_choice import cache_parts
from llm_engine.parallel.layout import Phase
from llm_engine.parallel.loading import Share, load_share, planned_memory
from llm_engine.parallel.mesh import Groups, Mesh, axis_ranks, joins_parts
from llm_engine.parallel.overlap_policy import OverlapPolicy
from llm_engine.parallel.overlap_seat import overlapped_steps
from llm_engine.parallel.phase_steps import PhaseSteps
from llm_engine.parallel.prompt_pages import PromptPages
from llm_engine.parallel.rank_ops import RankOps
from llm_engine.parallel.shares import cached_heads
from llm_engine.parallel.staged_prompts import StagedPrompts, num_slots
from llm_engine.parallel.step_command import BrokenCommand, StepCommand
from llm_engine.parallel.token_rows import Cache

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
        context: int,
        ledger: Ledger,
        policy: OverlapPolicy,
    ) -> None:
        """All ranks build theirs at the same time: groups of the layout's axes are joined here.

        `context` is the longest sequence, in tokens. The ledger is told what is decided while
        steps run.
        """
        own_slots = page_size // cache_parts(share.layouts)
        cache = _cache(share, share.cached, num_pages, own_slots)
        self.storage = TensorStorage(cache.layers, cache.reservations)
        self._groups, self._device = groups, share.device
        prefill, decode = groups.meshes(share.layouts)
        self._part = prefill.place.dp

        def steps(phase: Phase, mesh: Mesh, cache: Cache = cache) -> PhaseSteps:
            layout = share.layouts.of(phase)
            rank_ops = RankOps(share.whole, share.layouts, layout, mesh, ops)
            along = axis_ranks(layout, mesh.world.group.rank, "cp")
            cp_heads = [cached_heads(share.whole, layout, rank) for rank in along]
            overlap = overlapped_steps(
                share, rank_ops, ops, cp_heads, page_size, policy.in_phase(phase), ledger
            )
            adapters = share.adapters.used(rank_ops.share)
            return PhaseSteps(share.model, cache, ops, rank_ops, cp_heads, overlap, adapters)

        self._staged: StagedPrompts | None = None
        in_prompts: PhaseSteps | StagedPrompts
        if share.staged is None:
            in_prompts = steps("prefill", prefill)
        else:
            pages = PromptPages(num_slots(context, page_size), page_size)
            staged = _cache(share, share.staged, pages.num_slots, page_size)
            inner = steps("prefill", prefill, staged)
            world = prefill.world
            in_prompts = self._staged = StagedPrompts(
                inner, world, share.whole, share.layouts, cache, staged, pages
            )
        self._steps: dict[Phase, PhaseSteps | StagedPrompts] = {
            "prefill": in_prompts,
            "decode": steps("decode", decode),
        }
        self._saved: dict[int, Sequence[torch.Tensor]] = {}
        self._last = -1

    @torch.inference_mode()
    def execute(self, command: StepCommand, *, has_moved: bool = False) -> torch.Tensor | None:
        """Compute this rank's share of a step, in the layout of its phase.

        With `has_moved` its moves of pages have been carried out here.
        Returns float32 logits (S, V) on rank 0 if there are such rows, None elsewhere.
        Raises: BrokenCommand for one out of order; what the communicator raises where ranks are
            lost, stalled or disagree.
        """
        if command.sequence <= self._last:
            raise BrokenCommand(f"command {command.sequence} after command {self._last}")
        self._last = command.sequence
        if not has_moved:
            self._move(command)
        if self._staged is not None:
            self._staged.forget(page for move in command.moves for page in move.overwritten)
            if command.phase == "decode":
                self._staged.overwrite(command.spans)
        if not command.token_ids:
            return None
        return self._steps[command.phase].run(command)

    def renew(self) -> None:
        """Join the groups of the layout's axes anew; see `Groups.renew`."""
        self._groups.renew()
        for steps in self._steps.values():
            steps.renew()

    def wait(self) -> None:
        """Return once this rank's device has done what the commands asked of it."""
        self._device.wait()

    def close(self) -> None:
        """Close the communicators that this rank opened beside the one it was given."""
        self._groups.close()

    def _move(self, command: StepCommand) -> None:
        for move in command.moves:
            if move.part != self._part:
                continue
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


def _cache(share: Share, config: ModelConfig, num_pages: int, page_size: int) -> Cache:
    if share.is_packed:
        return NativeCache(config, num_pages, page_size)
    return PagedCache(config, num_pages, page_size, share.dtype, place=share.device.place)


def load_rank(
    config: EngineConfig, communicator: Communicator, device: EngineDevice | None = None
) -> RankExecutor:
    """Read the share of a follower (rank > 0) of the layout in `config.layout`.

    Meets rank 0, which calls `LLMEngine.load(config, ranks=...)` at the same time. `device` stands
    in for the one that `config` gives the rank.
    Raises: InvalidConfig where layout, model and number of ranks do not fit one another.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    share = load_share(config, communicator.group, device)
    share.device.use()
    communicator.barrier(LOAD_TIMEOUT_S)
    planned_memory(share, communicator)
    numbers = communicator.broadcast(torch.zeros(3, dtype=torch.int64)).tolist()
    num_pages, context, chunk_tokens = numbers
    sizes = OpSizes(
        chunk_tokens=chunk_tokens,
        num_seqs=config.max_num_seqs,
        context=context,
        page_size=config.page_size // cache_parts(share.layouts),
    )
    ledger = Ledger()
    ops = bind_ops(
        share.cached,
        share.dtype,
        sizes,
        asked=config.kernels,
        ledger=ledger,
        device=share.device,
        is_native=share.is_packed,
        has_ranks=True,
    )
    if config.batch_invariant:
        ops = make_invariant(ops, config, share.cached, share.dtype, ledger)
    return RankExecutor(
        share,
        ops,
        Groups(communicator, joins_parts(share.device.place, ledger)),
        num_pages,
        config.page_size,
        context,
        ledger,
        OverlapPolicy.of(config),
    )
