"""Whether sequences, tree and pages agree about who holds what."""

from collections import Counter
from collections.abc import Sequence

from llm_engine.cache.holding import ABSENT, Holding
from llm_engine.cache.pages import PagePool
from llm_engine.cache.tree import PrefixTree


def check_tree(tree: PrefixTree, holdings: Sequence[Holding]) -> None:
    """Verify the users and the shape of the tree. Raises: AssertionError."""
    users = Counter[int]()
    for holding in holdings:
        if holding.root is not None:
            users.update(id(node) for node in (holding.root, *holding.path, *holding.pending))
    for node in (*tree.nodes.values(), *tree.roots.values()):
        assert node.users == users[id(node)], f"{node.users} users, {users[id(node)]} known"
        on_device = sum(child.is_on_device for child in node.children.values())
        assert node.num_device_children == on_device, "children on the device are miscounted"
        assert node.is_on_device or not on_device, "a block is on the device, its parent is not"
        assert node.is_on_device == (node.host is None), "a block is nowhere or in two places"
        assert all(child.users <= node.users for child in node.children.values() if node.parent)


def check_pages(group: int, pool: PagePool, tree: PrefixTree, holdings: Sequence[Holding]) -> None:
    """Verify who uses and who keeps the pages of a group. Raises: AssertionError."""
    users = Counter(p for held in holdings for p in held.tables[group] if p != ABSENT)
    kept = Counter(p for node in tree.nodes.values() for p in node.pages[group] or ())
    for page in range(pool.num_pages):
        assert pool.num_users(page) == users[page], f"page {page}: users are miscounted"
        assert int(pool.is_cached(page)) == kept[page], f"page {page} is kept {kept[page]} times"
    idle = [node for node in tree.nodes.values() if not node.users]
    evictable = sum(len(node.pages[group] or ()) for node in idle)
    assert tree.num_evictable[group] == evictable, "evictable pages are miscounted"
