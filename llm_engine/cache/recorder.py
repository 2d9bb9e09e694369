"""How a running sequence and the prefix tree share pages, from admission to release."""

from llm_engine.cache.groups import CacheLayout, GroupKind
from llm_engine.cache.holding import ABSENT, Holding
from llm_engine.cache.node import Node, block_key
from llm_engine.cache.pages import PagePool
from llm_engine.cache.storage import NoStorage, PageStorage
from llm_engine.cache.tree import PrefixTree
from llm_engine.sequence import Sequence


class Recorder:
    """Moves pages between the tables of sequences and the nodes of the tree."""

    def __init__(self, layout: CacheLayout, pools: list[PagePool], tree: PrefixTree) -> None:
        """Work on `pools` and `tree`, which the cache owns."""
        self.storage: PageStorage = NoStorage()
        self._layout = layout
        self._pools = pools
        self._tree = tree

    def first_shared_block(self, group: int, num_blocks: int) -> int:
        """The first of `num_blocks` reused blocks whose pages of a group will be read."""
        kind = self._layout.groups[group].kind
        if kind is GroupKind.STATE:
            return max(0, num_blocks - 1)
        if kind is GroupKind.WINDOW:
            return self._layout.first_needed_block(group, num_blocks * self._layout.block_tokens)
        return 0

    def needed_groups(self, holding: Holding, node: Node) -> list[int]:
        """The groups whose pages of a reused block will be read."""
        end = len(holding.path)
        return [g for g in range(len(self._pools)) if self.first_shared_block(g, end) < node.depth]

    def lock(self, holding: Holding) -> None:
        """Become a user of the path."""
        if holding.root is not None:
            for node in (holding.root, *holding.path):
                self._tree.lock(node)

    def num_shared_unused(self, holding: Holding, group: int) -> int:
        """Pages of the path that count as available although they will be read."""
        if self._layout.groups[group].is_growing:
            return 0  # the lock has taken them out of the count
        pool = self._pools[group]
        return sum(
            not pool.num_users(page)
            for node in holding.path
            if node.is_on_device and group in self.needed_groups(holding, node)
            for page in node.pages[group] or ()
        )

    def share(self, holding: Holding) -> None:
        """Become a user of the path's pages on the device."""
        for node in holding.path:
            if node.is_on_device:
                for group in self.needed_groups(holding, node):
                    for page in node.pages[group] or ():
                        self._pools[group].use(page)

    def fill_tables(self, holding: Holding) -> None:
        """Begin the tables with the path's pages, which are all in use by now."""
        for group, chosen in enumerate(self._layout.groups):
            if chosen.kind is GroupKind.STATE:
                continue
            table = holding.tables[group]
            table.extend([ABSENT] * (holding.passed[group] * self._layout.pages_per_block(group)))
            for node in holding.path[holding.passed[group] :]:
                pages = node.pages[group]
                assert pages is not None, "a prefix was granted without its pages"
                table.extend(pages)

    def announce(self, holding: Holding, seq: Sequence) -> None:
        """Put the blocks that are about to be computed into the tree, so that others wait."""
        node, block = holding.last, self._layout.block_tokens
        for index in range(len(holding.path), len(seq.token_ids) // block):
            key = block_key(seq.token_ids, index, block)
            if key in node.children:
                return  # shared once it is computed, see `_next_node`
            child = self._tree.create(node, key, seq.seq_id)
            self._put_growing(holding, child)
            holding.pending.append(child)
            node = child

    def commit(self, holding: Holding, seq: Sequence) -> None:
        """Make the blocks reusable that are computed now; let go of what no window sees."""
        block = self._layout.block_tokens
        if holding.root is not None:
            for index in range(len(holding.path), seq.num_computed // block):
                holding.path.append(self._next_node(holding, seq, index))
                self._put_windows(holding, holding.path[-1])
            self._keep_states(holding, seq.num_computed)
        for group, chosen in enumerate(self._layout.groups):
            if chosen.kind is GroupKind.WINDOW:
                # Seen from the last whole block, so that a sequence that ends here is reusable.
                self._pass(holding, group, seq.num_computed // block * block)

    def release(self, holding: Holding, seq: Sequence) -> None:
        """Stop using everything; blocks that were never computed leave the tree."""
        for pool, table in zip(self._pools, holding.tables, strict=True):
            pool.drop(page for page in table if page != ABSENT)
        if holding.root is None:
            return
        for node in reversed(holding.pending):
            self._tree.unlock(node)
            if node.writer == seq.seq_id:
                self._tree.remove(node)
        for node in reversed(holding.path):
            self._tree.unlock(node)
            if seq.has_failed and not node.users and not node.num_requests:
                self._tree.remove(node)
        self._tree.unlock(holding.root)
        self._tree.prune(holding.root)

    def _next_node(self, holding: Holding, seq: Sequence, index: int) -> Node:
        if holding.pending:
            node = holding.pending.pop(0)
            if node.writer == seq.seq_id:
                node.writer = None
            else:
                self._share_growing(holding, node)
            return node
        key = block_key(seq.token_ids, index, self._layout.block_tokens)
        node = holding.last.children.get(key)
        if node is None:
            node = self._tree.create(holding.last, key, None)
            self._put_growing(holding, node)
            return node
        self._tree.lock(node)
        if node.writer is not None or not node.is_on_device:
            # Another is still computing it, or it lies in the host tier: ours is here now.
            self._put_growing(holding, node)
            node.writer = None
            if not node.is_on_device:
                self._tree.to_device(node)
        else:
            self._share_growing(holding, node)
        return node

    def _share_growing(self, holding: Holding, node: Node) -> None:
        """Another has computed the same block: use its pages, give ours back."""
        for group, chosen in enumerate(self._layout.groups):
            pages, own = node.pages[group], self._pages(holding, group, node.depth - 1)
            if not chosen.is_growing or pages is None or pages == own:
                continue
            for page in pages:
                self._pools[group].use(page)
            self._pools[group].drop(own)
            first = (node.depth - 1) * len(own)
            holding.tables[group][first : first + len(own)] = pages

    def _put_growing(self, holding: Holding, node: Node) -> None:
        for group, chosen in enumerate(self._layout.groups):
            if chosen.is_growing:
                self._tree.put_pages(node, group, self._pages(holding, group, node.depth - 1))

    def _put_windows(self, holding: Holding, node: Node) -> None:
        for group, chosen in enumerate(self._layout.groups):
            if chosen.kind is GroupKind.WINDOW and node.pages[group] is None:
                pages = self._pages(holding, group, node.depth - 1)
                if ABSENT not in pages:
                    self._tree.put_pages(node, group, pages)

    def _keep_states(self, holding: Holding, num_computed: int) -> None:
        if len(holding.path) * self._layout.block_tokens != num_computed or not holding.path:
            return
        node = holding.path[-1]
        for group, chosen in enumerate(self._layout.groups):
            is_due = chosen.kind is GroupKind.STATE and not num_computed % chosen.checkpoint_tokens
            if not is_due or node.pages[group] is not None:
                continue
            pool = self._pools[group]
            if pool.num_free or self._tree.evict(group):
                (page,) = pool.take(1)
                self.storage.copy(group, holding.tables[group][0], page)
                self._tree.put_pages(node, group, (page,))
                pool.drop((page,))
                self._tree.offer(node)

    def _pass(self, holding: Holding, group: int, num_tokens: int) -> None:
        per_block, pool = self._layout.pages_per_block(group), self._pools[group]
        first = self._layout.first_needed_block(group, num_tokens)
        for index in range(holding.passed[group], first):
            pages = self._pages(holding, group, index)
            pool.drop(pages)
            holding.tables[group][index * per_block : (index + 1) * per_block] = [
                ABSENT
            ] * per_block
            if index < len(holding.path):
                self._leave(holding.path[index], group, pages)
        holding.passed[group] = max(holding.passed[group], first)

    def _leave(self, node: Node, group: int, pages: tuple[int, ...]) -> None:
        """A window has passed a block: its pages stay for a checkpoint or for another's window."""
        is_kept = self._layout.is_kept(group, node.depth - 1)
        is_used = any(self._pools[group].num_users(page) for page in pages)
        if node.pages[group] == pages and not is_kept and not is_used:
            self._tree.take_pages(node, group)
        else:
            self._tree.offer(node)

    def _pages(self, holding: Holding, group: int, index: int) -> tuple[int, ...]:
        per_block = self._layout.pages_per_block(group)
        return tuple(holding.tables[group][index * per_block : (index + 1) * per_block])
