"""Keeping the cache's memory within what the machine can spare, while the engine runs."""

from collections.abc import Callable

from kernels.hardware.host_memory import MachineMemory
from llm_engine.cache.kv_cache import KVCache
from llm_engine.memory.pressure import Pressure, blocks_to_serve

INTERVAL_S = 2.0


class CacheKeeper:
    """Looks at the machine every `INTERVAL_S` seconds and moves the cache's bounds.

    Short of memory: the memory of free pages is returned first, then the host tier shrinks, then
    cached blocks leave. With memory to spare and blocks evicted lately, more pages come into
    service. Pages of running sequences are never touched.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        min_blocks: int,
        low_bytes: int,
        read_memory: Callable[[], MachineMemory],
        clock: Callable[[], float],
    ) -> None:
        """Keep at least `min_blocks` in service and `low_bytes` of the machine free."""
        self._cache = cache
        self._min_blocks = min_blocks
        self._low_bytes = low_bytes
        self._read_memory = read_memory
        self._clock = clock
        self._host_bytes = cache.host.capacity_bytes
        self._num_evicted = 0
        self._due_s = clock() + INTERVAL_S

    def tend(self) -> None:
        """Act if it is time; cheap otherwise."""
        if self._clock() < self._due_s:
            return
        self._due_s = self._clock() + INTERVAL_S
        pressure = self._look()
        if pressure.missing_bytes:
            self._cache.give_back_free()
            pressure = self._look()
        self._bound_host(pressure)
        num_blocks = blocks_to_serve(pressure)
        if num_blocks != pressure.num_blocks:
            self._cache.resize(num_blocks)
        self._num_evicted = self._cache.tree.num_evicted_blocks

    def _look(self) -> Pressure:
        cache = self._cache
        group, per_block = cache.layout.groups[0], cache.layout.pages_per_block(0)
        return Pressure(
            available_bytes=self._read_memory().available_bytes,
            low_bytes=self._low_bytes,
            high_bytes=2 * self._low_bytes,
            num_blocks=cache.pools[0].num_usable // per_block,
            min_blocks=self._min_blocks,
            max_blocks=cache.num_pages // per_block,
            block_bytes=group.page_bytes * per_block,
            is_short=cache.tree.num_evicted_blocks > self._num_evicted,
        )

    def _bound_host(self, pressure: Pressure) -> None:
        host = self._cache.host
        if pressure.missing_bytes:
            host.resize(max(0, host.used_bytes - pressure.missing_bytes))
        elif pressure.available_bytes > pressure.high_bytes:
            host.resize(self._host_bytes)
