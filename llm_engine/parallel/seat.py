"""Rank 0's seat in a group: what its engine needs beyond that of an engine alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from kernels.ledger import Decision
from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.config import EngineConfig
from llm_engine.decisions import EngineDecisions
from llm_engine.errors import InvalidConfig
from llm_engine.loader import choose_dtype
from llm_engine.memory.machine import MachineMemory
from llm_engine.parallel.adapter_shares import adapter_decision
from llm_engine.parallel.commands import Ranks
from llm_engine.parallel.decision import layout_decisions
from llm_engine.parallel.executor import LOAD_TIMEOUT_S, RankExecutor
from llm_engine.parallel.loading import Share, cache_needs, load_share, part_of
from llm_engine.parallel.mesh import Groups, JoinPart, join_part
from llm_engine.parallel.overlap_policy import OverlapPolicy, settled_decisions
from llm_engine.parallel.ranked_runner import RankedRunner
from llm_engine.parallel.step_division import StepDivision


@dataclass(frozen=True, slots=True)
class Seat:
    """Rank 0's share of the model, and the other ranks."""

    share: Share
    ranks: Ranks
    join_axis: JoinPart

    @classmethod
    def take(
        cls, config: EngineConfig, ranks: Ranks | None, join_axis: JoinPart = join_part
    ) -> Self:
        """Read rank 0's share, and wait until the others, in `load_rank`, have theirs.

        Raises: as `load_share`; InvalidConfig without ranks.
        """
        if ranks is None:
            raise InvalidConfig(
                f"layout is {config.layout!r}, but this engine has no other ranks: start it with "
                "its group, or leave layout out"
            )
        share = load_share(config, ranks.communicator.group)
        ranks.communicator.barrier(LOAD_TIMEOUT_S)
        return cls(share, ranks, join_axis)

    @property
    def num_parts(self) -> int:
        """In how many memories sequences are cached."""
        return self.share.layouts.decode.dp

    def decisions(self, config: EngineConfig) -> list[Decision]:
        """How the model is laid over the ranks, and why, for the ledger."""
        share = self.share
        needs = cache_needs(config, share.whole, choose_dtype(config.dtype, share.device))
        return [
            *layout_decisions(
                share.whole, share.layouts, needs, asked=config.layout, is_packed=share.is_packed
            ),
            *settled_decisions(OverlapPolicy.of(config), share.layouts.prefill),
            *([adapter_decision(share.layouts)] if config.adapters else []),
        ]

    def memory_of(self, read: Callable[[], MachineMemory]) -> Callable[[], MachineMemory]:
        """This rank's part of the memory that the ranks of a host have together."""
        num_ranks = self.share.layouts.num_ranks

        return lambda: part_of(read(), num_ranks)

    def runner(
        self, config: EngineConfig, decisions: EngineDecisions, pool: SequenceCache
    ) -> RankedRunner:
        """Tell the others how large cache and chunk are, and build this rank's executor."""
        capacity = decisions.capacity
        numbers = (pool.num_pages, capacity.max_model_len, decisions.chunk_tokens)
        sizes = torch.tensor(numbers, dtype=torch.int64)
        communicator = self.ranks.communicator

        def meet_again() -> None:
            communicator.barrier(LOAD_TIMEOUT_S)
            communicator.broadcast(sizes)

        communicator.broadcast(sizes)
        groups = Groups(communicator, self.join_axis)
        executor = RankExecutor(
            self.share,
            decisions.ops,
            groups,
            pool.num_pages,
            config.page_size,
            capacity.max_model_len,
            decisions.ledger,
            OverlapPolicy.of(config),
        )
        division = StepDivision.of(self.share.layouts, capacity.max_model_len, config.page_size)
        return RankedRunner(
            executor, pool, self.ranks.commands, division, tuple(config.adapters), meet_again
        )
