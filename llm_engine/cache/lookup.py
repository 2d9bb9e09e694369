"""Finding what of a prompt is computed already, and why the rest is not."""

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from itertools import islice

from llm_engine.cache.boundary import reusable_blocks
from llm_engine.cache.counters import MissCause
from llm_engine.cache.groups import CacheLayout
from llm_engine.cache.host import HostTier
from llm_engine.cache.node import Node, block_key, chain_of
from llm_engine.cache.tree import PrefixTree, Root
from llm_engine.sequence import Sequence

_ROOTS_SEARCHED = 64
_CHILDREN_SEARCHED = 64


@dataclass(frozen=True, slots=True)
class Match:
    """Blocks of a prompt that are in the tree.

    `path` holds the ready ones, the first `num_blocks` of which every group can give.
    `leader` is the sequence that is computing more of this prompt right now, up to
    `leader_blocks` blocks; None if there is none. `branch` is a block after those that begins with
    the next `num_branch_tokens` tokens and then goes another way; None if there is none.
    """

    path: tuple[Node, ...] = ()
    num_blocks: int = 0
    leader: int | None = None
    leader_blocks: int = 0
    branch: Node | None = None
    num_branch_tokens: int = 0


class Lookup:
    """Reads the tree; changes nothing."""

    def __init__(self, layout: CacheLayout, tree: PrefixTree, host: HostTier) -> None:
        """Look into `tree`, and into `host` for blocks that left the device."""
        self._layout = layout
        self._tree = tree
        self._host = host

    def reusable_limit(self, seq: Sequence) -> int:
        """Whole blocks before the last known token, which is always computed for its logits."""
        return (len(seq.token_ids) - 1) // self._layout.block_tokens

    def match(self, seq: Sequence) -> Match:
        """Follow a sequence's tokens through the tree."""
        node = self._tree.roots.get(root_name(seq))
        path: list[Node] = []
        leader, leader_blocks = None, 0
        for block in range(self.reusable_limit(seq) if node else 0):
            assert node is not None
            node = node.children.get(block_key(seq.token_ids, block, self._layout.block_tokens))
            if node is None:
                break
            if node.writer is not None:
                leader, leader_blocks = node.writer, block + 1
            elif leader is None:
                path.append(node)
        held = [self._groups(node) for node in path]
        num_blocks = reusable_blocks(self._layout, held)
        if leader is not None or num_blocks < len(path) or not path:
            return Match(tuple(path), num_blocks, leader, leader_blocks)
        branch, num_tokens = self._branch(path[-1], seq)
        return Match(tuple(path), num_blocks, branch=branch, num_branch_tokens=num_tokens)

    def _branch(self, node: Node, seq: Sequence) -> tuple[Node | None, int]:
        """The child with the most of the next tokens, which are not all of its own."""
        if not self._layout.is_divisible:
            return None, 0
        start = node.depth * self._layout.block_tokens
        end = min(start + self._layout.block_tokens, len(seq.token_ids) - 1)
        wanted = array("I", seq.token_ids[start:end])
        best, longest = None, 0
        for child in islice(reversed(node.children.values()), _CHILDREN_SEARCHED):
            if child.is_ready and child.is_on_device:
                length = _num_common(wanted, array("I", child.key))
                if length > longest:
                    best, longest = child, length
        return best, longest

    def miss_cause(self, seq: Sequence, match: Match, num_common_tokens: int) -> MissCause:
        """Why a sequence that may use the cache found nothing."""
        block = self._layout.block_tokens
        if self.reusable_limit(seq) == 0:
            return MissCause.BELOW_MINIMUM
        if match.path:
            return self._group_cause(match)
        name, key = root_name(seq), block_key(seq.token_ids, 0, block)
        root = self._tree.roots.get(name)
        chain = hash((hash(name), key)) if root is None else chain_of(root, key)
        if self._tree.is_ghost(chain):
            return MissCause.EVICTED
        others = list(self._tree.roots.items())[-_ROOTS_SEARCHED:]
        found = [other for other, node in others if other != name and key in node.children]
        if any(salt == name[1] for _, salt in found):
            return MissCause.DIFFERENT_ADAPTER
        if found:
            return MissCause.DIFFERENT_SALT
        if 0 < num_common_tokens < self._layout.min_reusable_prefix:
            return MissCause.BELOW_MINIMUM
        return MissCause.COLD

    def _group_cause(self, match: Match) -> MissCause:
        """Blocks are there, but a window or a state is not."""
        matched_tokens = len(match.path) * self._layout.block_tokens
        if matched_tokens < self._layout.min_reusable_prefix:
            return MissCause.BELOW_MINIMUM
        return MissCause.EVICTED

    def _groups(self, node: Node) -> frozenset[int]:
        if not node.is_on_device:
            assert node.host is not None
            return self._host.groups(node.host)
        return frozenset(group for group, pages in enumerate(node.pages) if pages is not None)


def _num_common(one: Tokens[int], other: Tokens[int]) -> int:
    """How many numbers both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def root_name(seq: Sequence) -> Root:
    """Prefixes are shared within an adapter and a salt only."""
    return (seq.adapter_id, seq.cache_salt)
