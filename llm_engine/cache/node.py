"""A block of tokens in the prefix tree, with the pages that hold it."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Node:
    """One block after its parent's; the path from the root spells a prefix.

    `pages` holds its device pages by group, None where the group has none here. `users` counts
    the sequences whose path runs through it. `writer` is the sequence that is still computing it.
    `host` is its ticket in the host store. `chain` names the whole prefix.
    """

    key: bytes
    parent: "Node | None"
    depth: int
    chain: int
    pages: list[tuple[int, ...] | None]
    is_on_device: bool = True
    children: dict[bytes, "Node"] = field(default_factory=dict[bytes, "Node"])
    num_device_children: int = 0
    users: int = 0
    writer: int | None = None
    host: int | None = None
    last_used: int = 0
    num_requests: int = 0
    is_pinned: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether its contents are computed."""
        return self.writer is None

    @property
    def is_empty(self) -> bool:
        """Whether nothing hangs on it: no page, no copy, no child, no user."""
        return (
            not self.children
            and not self.users
            and self.host is None
            and all(pages is None for pages in self.pages)
        )

    def subtree(self) -> Iterator["Node"]:
        """This node and everything below, parents first."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def block_key(token_ids: Sequence[int], block: int, block_tokens: int) -> bytes:
    """The tokens of a block as bytes, which hash faster than a tuple of numbers."""
    start = block * block_tokens
    return array("I", token_ids[start : start + block_tokens]).tobytes()


def chain_of(parent: Node, key: bytes) -> int:
    """The name of the prefix that ends with `key`."""
    return hash((parent.chain, key))
