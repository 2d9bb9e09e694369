"""Which blocks are shared so much that they leave last: system prompts, in practice."""

from llm_engine.cache.node import Node

PIN_AFTER_REQUESTS = 8


class Pins:
    """The pinned blocks, least recently used first, at most `max_blocks` of them.

    A pinned block is evicted only when no other can be. Invariant: a pinned block's parent is
    pinned, since whoever is served from a block is served from those before it.
    """

    def __init__(self, max_blocks: int, pin_after: int = PIN_AFTER_REQUESTS) -> None:
        """Start with none. `pin_after` requests served from a block pin it."""
        self.max_blocks = max_blocks
        self._pin_after = pin_after
        self._pinned: dict[Node, None] = {}

    @property
    def num_blocks(self) -> int:
        """How many are pinned."""
        return len(self._pinned)

    def consider(self, node: Node) -> list[Node]:
        """Pin a block where it qualifies. Returns the blocks whose state changed.

        Call it for the blocks of a path from the last to the first, so that ends count as older.
        """
        if node.is_pinned:
            self._pinned.pop(node)
            self._pinned[node] = None
            return []
        if node.num_requests < self._pin_after or not self.max_blocks:
            return []
        changed = [node]
        if len(self._pinned) >= self.max_blocks:
            oldest = next(iter(self._pinned))
            self.drop(oldest)
            changed.append(oldest)
        node.is_pinned = True
        self._pinned[node] = None
        return changed

    def drop(self, node: Node) -> None:
        """Unpin a block; one that is not pinned is no error."""
        if node.is_pinned:
            node.is_pinned = False
            del self._pinned[node]
