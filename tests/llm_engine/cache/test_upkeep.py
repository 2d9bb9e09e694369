"""The cache gives memory back under pressure and takes it again, without a restart."""

from kernels.hardware.host_memory import MachineMemory
from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.kv_cache import KVCache
from llm_engine.cache.upkeep import INTERVAL_S, CacheKeeper
from llm_engine.sequence import Sequence


class Machine:
    def __init__(self) -> None:
        self.available, self.now_s = 10_000, 0.0

    def read(self) -> MachineMemory:
        return MachineMemory(20_000, self.available, "the test")

    def clock(self) -> float:
        return self.now_s


def fill(cache: KVCache, first: int, num_tokens: int) -> None:
    seq = Sequence(first, [first] * num_tokens, num_tokens, num_tokens + 1)
    assert cache.admit(seq).is_admitted
    seq.num_computed = num_tokens
    cache.commit(seq)
    cache.release(seq)


def test_pages_leave_and_return_with_the_memory() -> None:
    machine = Machine()
    cache = KVCache(CacheLayout.single(page_tokens=4, bytes_per_token=25), [40], num_usable=[20])
    keeper = CacheKeeper(
        cache, min_blocks=5, low_bytes=1000, read_memory=machine.read, clock=machine.clock
    )
    fill(cache, 1, 80)
    machine.available = 400
    keeper.tend()
    assert cache.pools[0].num_usable == 20  # it is not time yet
    machine.now_s += INTERVAL_S
    keeper.tend()
    assert cache.pools[0].num_usable == 14  # 600 bytes are missing, a block has 100
    machine.now_s += INTERVAL_S
    machine.available = 0
    keeper.tend()
    assert cache.pools[0].num_usable == 5
    machine.now_s += INTERVAL_S
    machine.available = 3000
    fill(cache, 2, 20)
    keeper.tend()
    assert cache.pools[0].num_usable == 10
    machine.now_s += INTERVAL_S
    keeper.tend()
    assert cache.pools[0].num_usable == 10  # nothing was evicted since: nobody needs more
    cache.check_integrity()


def test_pages_in_use_stay() -> None:
    machine = Machine()
    cache = KVCache(CacheLayout.single(page_tokens=4, bytes_per_token=25), [20])
    keeper = CacheKeeper(
        cache, min_blocks=2, low_bytes=1000, read_memory=machine.read, clock=machine.clock
    )
    seq = Sequence(1, [1] * 60, 60, 70)
    cache.admit(seq)
    machine.available, machine.now_s = 0, INTERVAL_S
    keeper.tend()
    assert cache.pools[0].num_usable == 15
    assert len(cache.table(1)) == 15
    cache.check_integrity()
