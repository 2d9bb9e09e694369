"""What one running sequence holds of the cache."""

from dataclasses import dataclass, field

from llm_engine.cache.node import Node

ABSENT = -1  # in a window's table: a page that has passed out of sight


@dataclass(slots=True)
class Holding:
    """A sequence's pages by group, and its way through the prefix tree.

    `tables[g]` lists pages in token order; a window's begins with `ABSENT` ones, for the
    `passed[g]` blocks that it has left behind; a state's is its one page. `path` are the nodes of
    the computed blocks, `pending` those it is about to compute; it is a user of all of them and
    of `root`. `root` is None where the sequence takes no part in prefix reuse.
    """

    root: Node | None
    tables: list[list[int]]
    passed: list[int]
    path: list[Node] = field(default_factory=list[Node])
    pending: list[Node] = field(default_factory=list[Node])

    @property
    def last(self) -> Node:
        """The node below which the next block belongs."""
        assert self.root is not None
        return self.path[-1] if self.path else self.root
