"""Putting an engine's parts together: cache, scheduler, and what keeps the memory in bounds."""

import time
from collections.abc import Callable, Sequence

from kernels.hardware.host_memory import MachineMemory
from kernels.ops.registry import op_spec
from llm_engine.cache.divided import DividedCache
from llm_engine.cache.kv_cache import KVCache
from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.cache.storage import PageStorage
from llm_engine.cache.upkeep import CacheKeeper
from llm_engine.config import EngineConfig
from llm_engine.decisions import EngineDecisions
from llm_engine.decode_graphs import DecodeGraphs, GraphRecorder
from llm_engine.device import EngineDevice
from llm_engine.layers.attention import PagedCache
from llm_engine.layers.invariance import check_products
from llm_engine.layers.op_choice import ENGINE
from llm_engine.loader import LoadedModel
from llm_engine.memory.workspace import SAFETY
from llm_engine.runner import Runner, StepRunner
from llm_engine.sampler import Sampler, sample
from llm_engine.sampler.on_device import DeviceSampler
from llm_engine.scheduler import Scheduler
from llm_engine.scheduling.preemption import PreemptionPolicy
from llm_engine.scheduling.step_time import StepTimeModel

_PROBED_PAGES = 16


def build_cache(
    config: EngineConfig, decisions: EngineDecisions, num_parts: int = 1
) -> KVCache | DividedCache:
    """The bookkeeping of a cache of the decided size, in each of so many memories."""
    capacity, groups = decisions.capacity, decisions.layout.groups
    parts = [
        KVCache(
            decisions.layout,
            [
                capacity.num_reserved if group.is_growing else capacity.num_window_pages
                for group in groups
            ],
            num_usable=[
                capacity.num_pages if group.is_growing else capacity.num_window_pages
                for group in groups
            ],
            has_prefix_cache=config.prefix_cache,
            host_bytes=config.host_cache_bytes,
        )
        for _ in range(num_parts)
    ]
    return parts[0] if num_parts == 1 else DividedCache(parts)


def build_runner(
    config: EngineConfig, loaded: LoadedModel, cache: SequenceCache, decisions: EngineDecisions
) -> StepRunner:
    """What computes the steps of an engine alone, and the memory of its cache.

    Raises: InvalidConfig where adapters' products do not keep rows apart as the mode asks.
    """
    if config.batch_invariant:
        check_products(loaded.adapters.products, loaded.dtype)
    runner = Runner(loaded.model, cache, loaded.dtype, decisions.ops, loaded.adapters)
    if not decisions.has_graphs:
        return runner
    assert isinstance(runner.cache, PagedCache)
    return DecodeGraphs(
        runner,
        loaded.model,
        decisions.ops,
        runner.cache,
        cache,
        num_seqs=config.max_num_seqs,
        max_pages=-(-decisions.capacity.max_model_len // config.page_size),
        record=GraphRecorder(loaded.device.place),
    )


def build_sampler(decisions: EngineDecisions) -> Sampler:
    """What draws tokens: the processor, or the op that was chosen where the logits are."""
    (decision,) = [d for d in decisions.ops.decisions if d.what == "sampler"]
    if decision.chosen == ENGINE:
        return sample
    return DeviceSampler(op_spec("sampler").find(decision.chosen).load())


def build_scheduler(
    config: EngineConfig,
    decisions: EngineDecisions,
    cache: SequenceCache,
    storages: Sequence[PageStorage],
) -> Scheduler:
    """The scheduler over a cache whose parts lie in `storages`; copies are timed on the way."""
    for part, storage in zip(cache.parts, storages, strict=True):
        part.attach(storage)
    step_time = StepTimeModel()
    rate = _copy_bytes_per_s(cache.parts[0]) if config.host_cache_bytes else 0.0
    preemption = PreemptionPolicy(
        asked=config.preemption,
        model=step_time,
        bytes_per_token=cache.layout.bytes_per_token,
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


def build_keepers(
    config: EngineConfig,
    cache: SequenceCache,
    decisions: EngineDecisions,
    read_memory: Callable[[], MachineMemory],
    clock: Callable[[], float],
    device: EngineDevice,
) -> list[CacheKeeper]:
    """What moves each part's bounds with the memory to spare.

    None where its size was asked for, nor on a device, whose memory it took at once.
    """
    if config.kv_cache_bytes is not None or device.cache_share is not None:
        return []
    # Windows alone have fewer blocks than the longest sequence, and keep them all.
    longest = -(-decisions.capacity.max_model_len // cache.layout.block_tokens)
    return [
        CacheKeeper(
            part,
            min_blocks=min(longest, part.num_pages // part.layout.pages_per_block(0)),
            low_bytes=decisions.memory.size_bytes(SAFETY),
            read_memory=read_memory,
            clock=clock,
        )
        for part in cache.parts
    ]


def _copy_bytes_per_s(cache: KVCache) -> float:
    """The rate of copying free pages out; the pages stay as they were."""
    pages = list(range(min(_PROBED_PAGES, cache.num_pages)))
    storage = cache.storage
    storage.copy_in(0, pages, storage.copy_out(0, pages))
    started_s = time.perf_counter()
    storage.copy_in(0, pages, storage.copy_out(0, pages))
    elapsed_s = max(time.perf_counter() - started_s, 1e-9)
    return 2 * len(pages) * cache.layout.groups[0].page_bytes / elapsed_s
