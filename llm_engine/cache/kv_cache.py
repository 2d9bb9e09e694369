"""The cache as the scheduler sees it: admit, grow, commit, release. Bookkeeping, no tensors.

Whole blocks are shared, and immutable once they are. Of a block that begins like the rest of a
prompt and then goes another way, the sequence gets a copy: it holds that page anyway, and copying
is cheaper than computing even one of its tokens.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from llm_engine.cache.allocator import Allocator
from llm_engine.cache.counters import CacheCounters, MissCause
from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.holding import ABSENT, Holding
from llm_engine.cache.host import HostTier
from llm_engine.cache.integrity import check_pages, check_tree
from llm_engine.cache.lookup import Lookup, Match, root_name
from llm_engine.cache.miss_watch import MissWatch
from llm_engine.cache.pages import PagePool
from llm_engine.cache.pins import Pins
from llm_engine.cache.recorder import Recorder
from llm_engine.cache.storage import NoStorage, PageStorage
from llm_engine.cache.swap import Swaps
from llm_engine.cache.tree import PrefixTree
from llm_engine.sequence import Sequence as ScheduledSequence

PINNED_SHARE = 0.25
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a sequence that wants to run.

    Admitted: `num_tokens` of it are in the cache. Else it waits: for pages, or for `leader`, which
    is computing its first `leader_tokens` tokens anyway.
    """

    is_admitted: bool
    num_tokens: int = 0
    leader: int | None = None
    leader_tokens: int = 0


class KVCache:
    """Pages of every group, the sequences that use them, and the prefixes that outlive those.

    Invariants: see `check_integrity`; a page in use by a sequence is written by that sequence
    alone, or complete and read only.
    """

    def __init__(
        self,
        layout: CacheLayout,
        num_pages: Sequence[int],
        *,
        num_usable: Sequence[int] | None = None,
        has_prefix_cache: bool = True,
        host_bytes: int = 0,
    ) -> None:
        """Start empty. Units: pages by group; `host_bytes` for the tier below."""
        self.layout = layout
        usable = num_pages if num_usable is None else num_usable
        self.pools = [PagePool(n, m) for n, m in zip(num_pages, usable, strict=True)]
        self.has_prefix_cache = has_prefix_cache
        self.counters = CacheCounters()
        self.host = HostTier(layout, host_bytes)
        blocks = num_pages[0] // layout.pages_per_block(0)
        self.pins = Pins(int(blocks * PINNED_SHARE))
        self.tree = PrefixTree(layout, self.pools, self.pins, self.host)
        self.host.remove_block = self.tree.remove
        self.storage: PageStorage = NoStorage()
        self._lookup = Lookup(layout, self.tree, self.host)
        self._watch = MissWatch()
        self._swaps = Swaps(layout, self.host)
        self._recorder = Recorder(layout, self.pools, self.tree)
        self._allocator = Allocator(layout, self.pools, self.tree, self.host, self._recorder)
        self._holdings: dict[int, Holding] = {}

    def attach(self, storage: PageStorage) -> None:
        """Name the memory behind the pages; before it, nothing can leave the device."""
        self.storage = storage
        self.host.storage = storage
        self._recorder.storage = storage
        self._allocator.storage = storage

    @property
    def parts(self) -> Sequence["KVCache"]:
        """This cache alone: one memory."""
        return (self,)

    def part_of(self, seq_id: int) -> int:
        """In which part a sequence's pages are: there is one."""
        del seq_id
        return 0

    @property
    def num_pages(self) -> int:
        """Pages of the first group, those out of service included."""
        return self.pools[0].num_pages

    @property
    def pages_by_group(self) -> Sequence[int]:
        """Pages of each group, those out of service included."""
        return [pool.num_pages for pool in self.pools]

    @property
    def page_size(self) -> int:
        """Tokens of a page of the first group."""
        return self.layout.groups[0].page_tokens

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that the growing groups can hold."""
        sizes = [
            pool.num_usable * group.page_tokens
            for pool, group in zip(self.pools, self.layout.groups, strict=True)
            if group.is_growing
        ]
        return min(sizes, default=1 << 62)

    def table(self, seq_id: int, group: int = 0) -> Sequence[int]:
        """The pages of a sequence in token order; empty for an unknown sequence."""
        holding = self._holdings.get(seq_id)
        return () if holding is None else holding.tables[group]

    def admit(self, seq: ScheduledSequence) -> Admission:
        """Give a sequence pages for its known tokens and whatever prefix there is.

        The caller sets `num_computed` to the tokens granted.
        """
        assert seq.seq_id not in self._holdings, "admitted twice"
        if self._swaps.has(seq.seq_id):
            return self._resume(seq)
        takes_part = self.has_prefix_cache and not seq.wants_prompt_logits
        match = self._lookup.match(seq) if takes_part else Match()
        block = self.layout.block_tokens
        if match.leader is not None and match.leader != seq.seq_id:
            tokens = match.leader_blocks * block
            return Admission(False, leader=match.leader, leader_tokens=tokens)
        holding, num_tokens = None, match.num_blocks * block
        if match.branch is not None:
            holding = self._allocator.hold_with_branch(seq, match)
            num_tokens += match.num_branch_tokens if holding else 0
        if holding is None:
            holding = self._allocator.hold(seq, match, takes_part)
        if holding is None:
            return Admission(False)
        self._holdings[seq.seq_id] = holding
        if not seq.has_run:
            self._count(seq, match, num_tokens, takes_part)
        if takes_part:
            self._recorder.announce(holding, seq)
        return Admission(True, num_tokens=num_tokens)

    def num_reusable(self, seq: ScheduledSequence) -> int:
        """How many tokens of a sequence are here or under way; it need not be admitted."""
        if not self.has_prefix_cache or seq.wants_prompt_logits:
            return 0
        match = self._lookup.match(seq)
        return max(match.num_blocks, match.leader_blocks) * self.layout.block_tokens

    def can_grow(self, seq_id: int, num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        holding = self._holdings[seq_id]
        return all(
            self._allocator.num_missing(holding, group, num_tokens) <= self.num_available(group)
            for group in range(len(self.pools))
        )

    def grow(self, seq_id: int, num_tokens: int) -> None:
        """Give a running sequence pages for `num_tokens` tokens; `can_grow` must hold."""
        holding = self._holdings[seq_id]
        for group, table in enumerate(holding.tables):
            table.extend(
                self._allocator.take(group, self._allocator.num_missing(holding, group, num_tokens))
            )

    def num_available(self, group: int) -> int:
        """Pages that can be had: free ones, and cached ones that may be evicted."""
        return self._allocator.num_available(group)

    def commit(self, seq: ScheduledSequence) -> None:
        """Take in what was computed, up to `seq.num_computed`: whole blocks become reusable."""
        self._recorder.commit(self._holdings[seq.seq_id], seq)

    def release(self, seq: ScheduledSequence) -> None:
        """Take back everything of a sequence; its computed blocks stay for reuse while they can.

        A sequence that has failed leaves none that only itself has used. An unknown one holds
        nothing.
        """
        self._swaps.drop(seq.seq_id)
        holding = self._holdings.pop(seq.seq_id, None)
        if holding is not None:
            self._recorder.release(holding, seq)

    def swap_out(self, seq: ScheduledSequence) -> bool:
        """Copy a sequence's pages to the host tier and release it; false if there is no room."""
        if not self._swaps.save(seq, self._holdings[seq.seq_id].tables):
            return False
        holding = self._holdings.pop(seq.seq_id)
        self._recorder.release(holding, seq)
        return True

    def resize(self, num_blocks: int) -> int:
        """Bring blocks of the growing groups into service or take unused ones out.

        Cached blocks are evicted for it; those in use stay. Returns the blocks now in service.
        """
        counts: list[int] = []
        for group, pool in enumerate(self.pools):
            if not self.layout.groups[group].is_growing:
                continue
            per_block = self.layout.pages_per_block(group)
            target = num_blocks * per_block
            while pool.num_usable - target > pool.num_free and self.tree.evict(group):
                pass
            self.storage.give_back(group, pool.resize(target))
            counts.append(pool.num_usable // per_block)
        return min(counts, default=num_blocks)

    def give_back_free(self) -> None:
        """Return the memory behind free pages to the system."""
        for group, pool in enumerate(self.pools):
            self.storage.give_back(group, pool.free_pages())

    def clear(self) -> None:
        """Forget every prefix that no running sequence uses, and its host copies."""
        capacity_bytes = self.host.capacity_bytes
        self.host.resize(0)
        for group in range(len(self.pools)):
            while self.tree.evict(group):
                pass
        self.host.resize(capacity_bytes)

    def lose(self) -> None:
        """Forget everything, copies too: what lay in the memory is gone. No sequence may run."""
        assert not self._holdings, "a running sequence still holds pages"
        self._swaps.clear()
        self.clear()

    def check_integrity(self) -> None:
        """Verify pages, tree, users and host tier. Raises: AssertionError naming what is wrong."""
        for pool in self.pools:
            pool.check_integrity()
        self.host.check_integrity()
        holdings = list(self._holdings.values())
        check_tree(self.tree, holdings)
        for group, pool in enumerate(self.pools):
            check_pages(group, pool, self.tree, holdings)

    def _resume(self, seq: ScheduledSequence) -> Admission:
        """Bring a sequence back that was copied to the host tier."""
        tables = self._swaps.tables(seq.seq_id)
        needed = [sum(page != ABSENT for page in table) for table in tables]
        if any(count > self.num_available(group) for group, count in enumerate(needed)):
            return Admission(False)
        fresh = [self._allocator.take(group, count) for group, count in enumerate(needed)]
        root = self.tree.root(root_name(seq)) if self.has_prefix_cache else None
        root = None if seq.wants_prompt_logits else root
        restored = self._swaps.load(seq.seq_id, fresh)
        passed = [
            table.count(ABSENT) // self.layout.pages_per_block(group)
            for group, table in enumerate(restored)
        ]
        holding = Holding(root, restored, passed)
        self._recorder.lock(holding)
        self._holdings[seq.seq_id] = holding
        return Admission(True, num_tokens=seq.num_computed)

    def _count(
        self, seq: ScheduledSequence, match: Match, num_tokens: int, takes_part: bool
    ) -> None:
        counters = self.counters
        counters.num_prompt_tokens += seq.num_prompt_tokens
        if not takes_part:
            is_scored = self.has_prefix_cache
            cause = MissCause.PROMPT_LOGITS if is_scored else MissCause.CACHE_OFF
            counters.count_miss(cause)
            return
        num_common = self._watch.longest_common(seq.token_ids)
        if match.num_blocks:
            self.tree.tick()
            for node in reversed(match.path[: match.num_blocks]):
                self.tree.touch(node)
            limit = self._lookup.reusable_limit(seq) * self.layout.block_tokens
            counters.count_hit(num_tokens, limit)
            self._watch.hit()
            return
        cause = self._lookup.miss_cause(seq, match, num_common)
        counters.count_miss(cause)
        if self._watch.miss(num_common):
            counters.num_warnings += 1
            _LOG.warning(
                "%d requests in a row found nothing in the prefix cache, though prompts begin "
                "alike (%d tokens); last cause: %s; shortest reusable prefix: %d tokens",
                self._watch.num_in_row,
                num_common,
                cause,
                self.layout.min_reusable_prefix,
            )
