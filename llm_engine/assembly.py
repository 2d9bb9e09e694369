"""Putting an engine's parts together: cache, scheduler, and what keeps the memory in bounds."""

import time
from collections.abc import Callable

from llm_engine.cache.kv_cache import KVCache
from llm_engine.cache.storage import PageStorage
from llm_engine.cache.upkeep import CacheKeeper
from llm_engine.config import EngineConfig
from llm_engine.decisions import EngineDecisions
from llm_engine.loader import LoadedModel
from llm_engine.memory.machine import MachineMemory
from llm_engine.memory.workspace import SAFETY
from llm_engine.models.tiled_head import TiledHead
from llm_engine.runner import Runner
from llm_engine.scheduler import Scheduler
from llm_engine.scheduling.preemption import PreemptionPolicy
from llm_engine.scheduling.step_time import StepTimeModel

_PROBED_PAGES = 16


def build_cache(config: EngineConfig, decisions: EngineDecisions) -> KVCache:
    """The bookkeeping of a cache of the decided size."""
    capacity = decisions.capacity
    return KVCache(
        decisions.layout,
        [capacity.num_reserved],
        num_usable=[capacity.num_pages],
        has_prefix_cache=config.prefix_cache,
        host_bytes=config.host_cache_bytes,
    )


def build_runner(
    config: EngineConfig, loaded: LoadedModel, cache: KVCache, decisions: EngineDecisions
) -> Runner:
    """What computes the steps of an engine alone, and the memory of its cache."""
    is_tiled = config.batch_invariant and not decisions.ops.is_native
    model = TiledHead(loaded.model) if is_tiled else loaded.model
    return Runner(model, cache, loaded.dtype, decisions.ops, loaded.adapters)


def build_scheduler(
    config: EngineConfig, decisions: EngineDecisions, cache: KVCache, storage: PageStorage
) -> Scheduler:
    """The scheduler over a cache whose pages lie in `storage`; copies are timed on the way."""
    cache.attach(storage)
    step_time = StepTimeModel()
    group = cache.layout.groups[0]
    rate = _copy_bytes_per_s(cache, storage) if config.host_cache_bytes else 0.0
    preemption = PreemptionPolicy(
        asked=config.preemption,
        model=step_time,
        bytes_per_token=group.page_bytes / group.page_tokens,
        copy_bytes_per_s=rate,
        record=decisions.ledger.record,
    )
    return Scheduler(
        cache,
        max_num_seqs=config.max_num_seqs,
        prefill_chunk_tokens=decisions.chunk_tokens,
        max_step_delay_s=config.max_step_delay_s,
        step_time=step_time,
        preemption=preemption,
    )


def build_keeper(
    config: EngineConfig,
    cache: KVCache,
    decisions: EngineDecisions,
    read_memory: Callable[[], MachineMemory],
    clock: Callable[[], float],
) -> CacheKeeper | None:
    """What moves the cache's bounds with the memory to spare; None where its size was asked for."""
    if config.kv_cache_bytes is not None:
        return None
    return CacheKeeper(
        cache,
        min_blocks=-(-decisions.capacity.max_model_len // cache.layout.block_tokens),
        low_bytes=decisions.memory.size_bytes(SAFETY),
        read_memory=read_memory,
        clock=clock,
    )


def _copy_bytes_per_s(cache: KVCache, storage: PageStorage) -> float:
    """The rate of copying free pages out; the pages stay as they were."""
    pages = list(range(min(_PROBED_PAGES, cache.num_pages)))
    storage.copy_in(0, pages, storage.copy_out(0, pages))
    started_s = time.perf_counter()
    storage.copy_in(0, pages, storage.copy_out(0, pages))
    elapsed_s = max(time.perf_counter() - started_s, 1e-9)
    return 2 * len(pages) * cache.layout.groups[0].page_bytes / elapsed_s
