"""The radix tree of computed prefixes, one block to an edge, and what may be evicted from it.

Blocks of growing groups leave from the ends of the tree, least recently used first: a block is
worthless without those before it. Windows and states leave wherever nobody uses them.
"""

import heapq
from itertools import count

from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.host import HostTier
from llm_engine.cache.node import Node, chain_of
from llm_engine.cache.pages import PagePool
from llm_engine.cache.pins import Pins

Root = tuple[str | None, str]

GHOSTS_PER_PAGE = 4
_HEAP_SLACK = 64


class PrefixTree:
    """Nodes by prefix, adapter and salt.

    Invariants: users of a node >= users of each child; a node on the device has its parent there;
    `num_evictable[g]` counts the device pages of nodes without users.
    """

    def __init__(
        self, layout: CacheLayout, pools: list[PagePool], pins: Pins, host: HostTier
    ) -> None:
        """Start empty. Evicted blocks go to `host` as far as it has room."""
        self.roots: dict[Root, Node] = {}
        self.nodes: dict[int, Node] = {}
        self.num_evictable = [0] * len(pools)
        self.num_evicted_blocks = 0
        self._layout = layout
        self._pools = pools
        self._pins = pins
        self._host = host
        self._ghosts: dict[int, None] = {}
        self._clock = 0
        self._serial = count()
        # One heap for blocks as a whole, one for each window or state: (rank, serial, node).
        self._heaps: list[list[tuple[tuple[bool, int], int, Node]]] = [[] for _ in pools]
        growing = [g for g, group in enumerate(layout.groups) if group.is_growing]
        self._lead = growing[0] if growing else None

    def root(self, name: Root) -> Node:
        """The root of an adapter's and a salt's prefixes, made when missing."""
        node = self.roots.get(name)
        if node is None:
            node = Node(b"", None, 0, hash(name), [None] * len(self._pools))
            self.roots[name] = node
        return node

    def tick(self) -> None:
        """Move the clock of use on; once for each request that is served."""
        self._clock += 1

    def create(self, parent: Node, key: bytes, writer: int | None) -> Node:
        """A child on the device, without pages, with one user."""
        node = Node(
            key=key,
            parent=parent,
            depth=parent.depth + 1,
            chain=chain_of(parent, key),
            pages=[None] * len(self._pools),
            users=1,
            writer=writer,
            last_used=self._clock,
        )
        parent.children[key] = node
        parent.num_device_children += 1
        self.nodes[id(node)] = node
        self._ghosts.pop(node.chain, None)
        return node

    def put_pages(self, node: Node, group: int, pages: tuple[int, ...]) -> None:
        """Let a used node keep pages that are in use, in place of those it had."""
        assert node.users, "pages are put into nodes in use"
        self.take_pages(node, group)
        for page in pages:
            self._pools[group].keep(page)
        node.pages[group] = pages

    def take_pages(self, node: Node, group: int) -> None:
        """Let a node keep its pages of a group no longer."""
        pages = node.pages[group]
        if pages is None:
            return
        node.pages[group] = None
        if not node.users:
            self.num_evictable[group] -= len(pages)
        for page in pages:
            self._pools[group].forget(page)

    def to_device(self, node: Node) -> None:
        """A node of the host tier is back on the device; its ticket is dropped."""
        assert not node.is_on_device
        assert node.parent is not None
        node.is_on_device = True
        node.parent.num_device_children += 1
        self._drop_ticket(node)

    def lock(self, node: Node) -> None:
        """One more sequence runs through the node."""
        if not node.users:
            self._count_evictable(node, -1)
        node.users += 1

    def unlock(self, node: Node) -> None:
        """A sequence leaves; without any the node may be evicted. Children go first."""
        node.users -= 1
        if not node.users:
            node.last_used = self._clock
            self._count_evictable(node, 1)
        self.offer(node)

    def offer(self, node: Node) -> None:
        """Line a node up for eviction, where it qualifies."""
        for group in range(len(self._pools)):
            if self._is_candidate(node, group):
                rank = (node.is_pinned, node.last_used)
                heap = self._heaps[group]
                heapq.heappush(heap, (rank, next(self._serial), node))
                if len(heap) > 2 * len(self.nodes) + _HEAP_SLACK:
                    self._rebuild(group)

    def touch(self, node: Node) -> None:
        """Count a request that was served from the node, and pin it when it is much shared."""
        node.num_requests += 1
        for changed in self._pins.consider(node):
            self.offer(changed)

    def evict(self, group: int) -> bool:
        """Free at least one page of a group; false when no node can give one."""
        heap = self._heaps[self._heap_of(group)]
        while heap:
            rank, _, node = heapq.heappop(heap)
            is_current = rank == (node.is_pinned, node.last_used)
            if is_current and self._is_candidate(node, self._heap_of(group)):
                if self._layout.groups[group].is_growing:
                    self._evict_block(node)
                else:
                    self.take_pages(node, group)
                    self.prune(node)
                return True
        return False

    def remove(self, node: Node) -> None:
        """Drop a node without users and all below it, and parents that then hold nothing."""
        parent = node.parent
        assert parent is not None
        self._detach(node)
        self.offer(parent)
        self.prune(parent)

    def prune(self, node: Node) -> None:
        """Remove a node that holds nothing, and the parents that then hold nothing."""
        while node.parent is not None and node.is_empty:
            parent = node.parent
            self._detach(node)
            node = parent
        if node.parent is None and not node.children and not node.users:
            for name in [name for name, root in self.roots.items() if root is node]:
                del self.roots[name]

    def is_ghost(self, chain: int) -> bool:
        """Whether a prefix was here and was evicted, not too long ago."""
        return chain in self._ghosts

    def _evict_block(self, node: Node) -> None:
        self.num_evicted_blocks += 1
        node.host = self._host.save(node.pages, owner=node)
        if node.host is None:
            self.remove(node)
            return
        for group in range(len(self._pools)):
            self.take_pages(node, group)
        self._pins.drop(node)
        node.is_on_device = False
        parent = node.parent
        assert parent is not None
        parent.num_device_children -= 1
        self.offer(parent)

    def _heap_of(self, group: int) -> int:
        if self._layout.groups[group].is_growing:
            assert self._lead is not None
            return self._lead
        return group

    def _is_candidate(self, node: Node, group: int) -> bool:
        pages = node.pages[group]
        if pages is None or node.parent is None:
            return False
        if self._layout.groups[group].is_growing:
            is_end = not node.users and not node.num_device_children
            return group == self._lead and node.is_on_device and is_end
        return all(not self._pools[group].num_users(page) for page in pages)

    def _count_evictable(self, node: Node, sign: int) -> None:
        for group, pages in enumerate(node.pages):
            if pages is not None:
                self.num_evictable[group] += sign * len(pages)

    def _rebuild(self, group: int) -> None:
        heap = [
            ((node.is_pinned, node.last_used), next(self._serial), node)
            for node in self.nodes.values()
            if self._is_candidate(node, group)
        ]
        heapq.heapify(heap)
        self._heaps[group] = heap

    def _drop_ticket(self, node: Node) -> None:
        if node.host is not None:
            self._host.drop(node.host)
            node.host = None

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        parent.num_device_children -= node.is_on_device
        for each in list(node.subtree()):
            assert not each.users, "a node in use cannot be removed"
            for group in range(len(self._pools)):
                self.take_pages(each, group)
            self._drop_ticket(each)
            self._pins.drop(each)
            self._haunt(each)
            each.is_on_device = False
            del self.nodes[id(each)]

    def _haunt(self, node: Node) -> None:
        if not node.is_ready:
            return
        self._ghosts[node.chain] = None
        if len(self._ghosts) > GHOSTS_PER_PAGE * self._pools[0].num_pages:
            del self._ghosts[next(iter(self._ghosts))]
