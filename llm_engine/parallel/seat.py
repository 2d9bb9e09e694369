"""Rank 0's seat in a group: what its engine needs beyond that of an engine alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from kernels.hardware.host_memory import MachineMemory
from kernels.ledger import Decision
from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.config import EngineConfig
from llm_engine.decisions import EngineDecisions
from llm_engine.device import EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.loader import choose_dtype
from llm_engine.parallel.adapter_shares import adapter_decision
from llm_engine.parallel.commands import Ranks
from llm_engine.parallel.decision import layout_decisions
from llm_engine.parallel.executor import LOAD_TIMEOUT_S, RankExecutor
from llm_engine.parallel.loading import Share, cache_needs, load_share, planned_memory
from llm_engine.parallel.mesh import Groups, joins_parts
from llm_engine.parallel.overlap_policy import OverlapPolicy, settled_decisions
from llm_engine.parallel.rank_device import devices_decision, part_of
from llm_engine.parallel.ranked_runner import RankedRunner
from llm_engine.parallel.step_division import StepDivision


@dataclass(frozen=True, slots=True)
class Seat:
    """Rank 0's share of the model, and the other ranks."""

    share: Share
    ranks: Ranks
    memory: MachineMemory | None

    @classmethod
    def take(
        cls, config: EngineConfig, ranks: Ranks | None, device: EngineDevice | None = None
    ) -> Self:
        """Read rank 0's share, and wait until the others, in `load_rank`, have theirs.

        `device` stands in for the one that `config` gives the rank. `memory` is what every rank's
        device has left, None on the CPU.
        Raises: as `load_share`; InvalidConfig without ranks.
        """
        if ranks is None:
            raise InvalidConfig(
                f"layout is {config.layout!r}, but this engine has no other ranks: start it with "
                "its group, or leave layout out"
            )
        share = load_share(config, ranks.communicator.group, device)
        ranks.communicator.barrier(LOAD_TIMEOUT_S)
        return cls(share, ranks, planned_memory(share, ranks.communicator))

    @property
    def num_parts(self) -> int:
        """In how many memories sequences are cached."""
        return self.share.layouts.decode.dp

    def decisions(self, config: EngineConfig) -> list[Decision]:
        """How the model is laid over the ranks, and why, for the ledger."""
        share = self.share
        needs = cache_needs(config, share.whole, choose_dtype(config.dtype, share.device))
        on_devices = devices_decision(share.layouts, share.device)
        policy = OverlapPolicy.of(config)
        return [
            *layout_decisions(
                share.whole, share.layouts, needs, asked=config.layout, is_packed=share.is_packed
            ),
            *([] if on_devices is None else [on_devices]),
            *settled_decisions(policy, share.layouts, on_devices=on_devices is not None),
            *([adapter_decision(share.layouts)] if config.adapters else []),
        ]

    def memory_of(self, read: Callable[[], MachineMemory]) -> Callable[[], MachineMemory]:
        """What every rank can give: of its device, or of the memory that a host's ranks share."""
        num_ranks, least = self.share.layouts.num_ranks, self.memory
        if least is not None:
            return lambda: least
        return lambda: part_of(read(), num_ranks)

    def runner(
        self, config: EngineConfig, decisions: EngineDecisions, pool: SequenceCache
    ) -> RankedRunner:
        """Tell the others how large cache and chunk are, and build this rank's executor."""
        capacity = decisions.capacity
        numbers = (pool.num_pages, capacity.max_model_len, decisions.chunk_tokens)
        sizes = torch.tensor(numbers, dtype=torch.int64)
        communicator, share = self.ranks.communicator, self.share

        def meet_again() -> None:
            communicator.barrier(LOAD_TIMEOUT_S)
            planned_memory(share, communicator)  # the cache keeps its size
            communicator.broadcast(sizes)

        communicator.broadcast(sizes)
        groups = Groups(communicator, joins_parts(share.device.place, decisions.ledger))
        executor = RankExecutor(
            share,
            decisions.ops,
            groups,
            pool.num_pages,
            config.page_size,
            capacity.max_model_len,
            decisions.ledger,
            OverlapPolicy.of(config),
        )
        division = StepDivision.of(share.layouts, capacity.max_model_len, config.page_size)
        return RankedRunner(
            executor, pool, self.ranks.commands, division, tuple(config.adapters), meet_again
        )
