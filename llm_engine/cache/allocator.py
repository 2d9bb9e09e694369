"""Finding pages: what a sequence needs at admission and while it grows, group by group."""

from llm_engine.cache.groups import CacheLayout, GroupKind
from llm_engine.cache.holding import Holding
from llm_engine.cache.host import HostTier
from llm_engine.cache.lookup import Match, root_name
from llm_engine.cache.node import Node
from llm_engine.cache.pages import PagePool
from llm_engine.cache.recorder import Recorder
from llm_engine.cache.storage import NoStorage, PageStorage
from llm_engine.cache.tree import PrefixTree
from llm_engine.sequence import Sequence


class Allocator:
    """Takes pages from the pools, evicting where that is needed."""

    def __init__(
        self,
        layout: CacheLayout,
        pools: list[PagePool],
        tree: PrefixTree,
        host: HostTier,
        recorder: Recorder,
    ) -> None:
        """Work on parts that the cache owns."""
        self.storage: PageStorage = NoStorage()
        self.layout = layout
        self.pools = pools
        self.tree = tree
        self.host = host
        self._recorder = recorder

    def num_available(self, group: int) -> int:
        """Pages that can be had: free ones, and cached ones that may be evicted."""
        pool = self.pools[group]
        if self.layout.groups[group].is_growing:
            return pool.num_free + self.tree.num_evictable[group]
        return pool.num_free + pool.num_cached

    def num_missing(self, holding: Holding, group: int, num_tokens: int) -> int:
        """Pages that a sequence lacks to hold `num_tokens` tokens."""
        chosen = self.layout.groups[group]
        if chosen.kind is GroupKind.STATE:
            return 0
        return max(0, -(-num_tokens // chosen.page_tokens) - len(holding.tables[group]))

    def take(self, group: int, num_pages: int) -> list[int]:
        """Pages of a group; there must be as many available."""
        pool = self.pools[group]
        while pool.num_free < num_pages:
            assert self.tree.evict(group), f"group {group} has too few pages"
        return pool.take(num_pages)

    def hold_with_branch(self, seq: Sequence, match: Match) -> Holding | None:
        """`hold`, and the first tokens of a branch in a copy; None when there are too few pages.

        A copy, since the sequence writes its own tokens behind them.
        """
        branch = match.branch
        assert branch is not None
        self.tree.lock(branch)  # it must outlive the search for pages
        holding = self.hold(seq, match, takes_part=True)
        if holding is not None:
            for group, pages in enumerate(branch.pages):
                first = match.num_blocks * self.layout.pages_per_block(group)
                for source, target in zip(pages or (), holding.tables[group][first:], strict=False):
                    self.storage.copy(group, source, target)
        self.tree.unlock(branch)
        return holding

    def hold(self, seq: Sequence, match: Match, takes_part: bool) -> Holding | None:
        """Lock the prefix, then take the pages that are missing; None when there are too few."""
        root = self.tree.root(root_name(seq)) if takes_part else None
        holding = Holding(
            root,
            [[] for _ in self.pools],
            [
                self._recorder.first_shared_block(g, match.num_blocks)
                for g in range(len(self.pools))
            ],
            list(match.path[: match.num_blocks]),
        )
        self._recorder.lock(holding)
        fetched = [node for node in holding.path if not node.is_on_device]
        if not self._has_room(holding, fetched, len(seq.token_ids)):
            self._recorder.release(holding, seq)
            return None
        self._recorder.share(holding)
        for node in fetched:
            self._fetch(node, self._recorder.needed_groups(holding, node))
        self._recorder.fill_tables(holding)
        for group, chosen in enumerate(self.layout.groups):
            if chosen.is_growing:
                missing = self.num_missing(holding, group, len(seq.token_ids))
                holding.tables[group].extend(self.take(group, missing))
        self._take_states(holding)
        return holding

    def _has_room(self, holding: Holding, fetched: list[Node], num_tokens: int) -> bool:
        for group, chosen in enumerate(self.layout.groups):
            per_block = self.layout.pages_per_block(group)
            num_fetched = sum(
                group in self._recorder.needed_groups(holding, node) for node in fetched
            )
            needed = num_fetched * per_block
            if chosen.is_growing:
                on_device = (len(holding.path) - len(fetched)) * per_block
                needed = -(-num_tokens // chosen.page_tokens) - on_device
            elif chosen.kind is GroupKind.STATE:
                needed += 1
            shared = self._recorder.num_shared_unused(holding, group)
            if needed > self.num_available(group) - shared:
                return False
        return True

    def _fetch(self, node: Node, groups: list[int]) -> None:
        """Bring a block back from the host tier."""
        assert node.host is not None
        for group in groups:
            pages = tuple(self.take(group, self.layout.pages_per_block(group)))
            self.host.load(node.host, group, pages)
            self.tree.put_pages(node, group, pages)
        self.tree.to_device(node)

    def _take_states(self, holding: Holding) -> None:
        for group, chosen in enumerate(self.layout.groups):
            if chosen.kind is GroupKind.STATE:
                (page,) = self.take(group, 1)
                if holding.path:
                    saved = holding.path[-1].pages[group]
                    assert saved is not None, "a prefix was granted without its state"
                    self.storage.copy(group, saved[0], page)
                    self.pools[group].drop(saved)
                    self.tree.offer(holding.path[-1])
                holding.tables[group] = [page]
