"""What a model keeps of its past: groups of cached rows, and the geometry they share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from kernels.layer_groups import RowGroup


class GroupKind(StrEnum):
    """How a group grows and what of it must be there for a sequence to go on."""

    FULL = "full"  # a row per token, all of them needed
    COMPRESSED = "compressed"  # a row for several tokens, all of them needed
    INDEX = "index"  # keys that choose among the rows, all of them needed
    WINDOW = "window"  # a row per token, the last `window_tokens` needed
    STATE = "state"  # one block per sequence, true at one position only


_GROWING = (GroupKind.FULL, GroupKind.COMPRESSED, GroupKind.INDEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """One kind of cached row, over all layers that keep it.

    Units: `page_tokens` tokens of the sequence in a page; `page_bytes` bytes of a page over the
    group's layers (for a state, of one state); `window_tokens` what a token sees, itself
    included. A window or a state stays behind for reuse only at every `checkpoint_tokens` and
    where a sequence ends. `layers` (counted from 0) are those whose rows it holds; empty for all.
    """

    name: str
    kind: GroupKind
    page_tokens: int
    page_bytes: int
    window_tokens: int = 0
    checkpoint_tokens: int = 0
    layers: frozenset[int] = frozenset()

    @property
    def is_growing(self) -> bool:
        """Whether every token of the sequence takes room for good."""
        return self.kind in _GROWING


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of a model; prefixes are reused in blocks of `block_tokens`.

    A block holds whole pages of every group. Raises: ValueError where a geometry does not fit.
    """

    groups: tuple[CacheGroup, ...]

    def __post_init__(self) -> None:
        """Check that pages and checkpoints fall on the borders of blocks."""
        if not self.groups:
            raise ValueError("a cache layout needs at least one group")
        for group in self.groups:
            if group.page_tokens < 1 or group.page_bytes < 1:
                raise ValueError(f"group {group.name}: pages must hold a token and a byte at least")
            if group.kind is GroupKind.WINDOW and group.window_tokens < 1:
                raise ValueError(f"group {group.name}: window_tokens must be at least 1")
            if group.is_growing:
                continue
            if group.checkpoint_tokens < 1 or group.checkpoint_tokens % self.block_tokens:
                raise ValueError(
                    f"group {group.name}: checkpoint_tokens is {group.checkpoint_tokens}, must be "
                    f"a multiple of the block of {self.block_tokens} tokens"
                )

    @classmethod
    def single(
        cls,
        *,
        page_tokens: int,
        bytes_per_token: int,
        num_parts: int = 1,
        name: str = "keys and values",
    ) -> Self:
        """A model whose layers all keep every key and value; here, one of equal parts of a page."""
        group = CacheGroup(
            name="keys and values",
            kind=GroupKind.FULL,
            page_tokens=page_tokens,
            page_bytes=page_tokens // num_parts * bytes_per_token,
        )
        return cls((group,))

    @classmethod
    def from_rows(cls, rows: Sequence[RowGroup], *, checkpoint_tokens: int = 2048) -> Self:
        """The groups of a plan.

        Rows that do not grow are a window where the plan names them so, else a state. Units:
        `checkpoint_tokens` is the least distance of checkpoints; it is rounded up to blocks.
        """
        growing = [row.page_tokens for row in rows if row.tokens_per_row]
        windows = [row.page_tokens for row in rows if _kind(row) is GroupKind.WINDOW]
        block = math.lcm(*growing, *windows)
        spacing = -(-checkpoint_tokens // block) * block
        return cls(tuple(_group(row, block, spacing) for row in rows))

    @property
    def block_tokens(self) -> int:
        """Tokens of a block: the least that holds whole pages of every group."""
        paged = [g.page_tokens for g in self.groups if g.kind is not GroupKind.STATE]
        return math.lcm(*paged) if paged else math.gcd(*(g.page_tokens for g in self.groups))

    @property
    def min_reusable_prefix(self) -> int:
        """The shortest prefix, in tokens, that a later request is sure to find in every group."""
        checkpoints = [g.checkpoint_tokens for g in self.groups if not g.is_growing]
        return max([self.block_tokens, *checkpoints])

    @property
    def window_group(self) -> int | None:
        """The group of the layers with a window; None where there are none."""
        kinds = [group.kind for group in self.groups]
        return kinds.index(GroupKind.WINDOW) if GroupKind.WINDOW in kinds else None

    @property
    def growing_group(self) -> int | None:
        """The first group that grows with every token; None where there are none."""
        return next((g for g, group in enumerate(self.groups) if group.is_growing), None)

    @property
    def bytes_per_token(self) -> float:
        """What a long sequence grows by; of windows alone, what a token takes while it is seen."""
        growing = [group for group in self.groups if group.is_growing] or self.groups
        return sum(group.page_bytes / group.page_tokens for group in growing)

    def group_of(self, layer: int) -> int:
        """The group that holds a layer's rows."""
        found = (g for g, group in enumerate(self.groups) if layer in group.layers)
        return next(found, 0)

    def most_pages(self, group: int, num_tokens: int, num_new: int = 1) -> int:
        """Pages of a group that a sequence holds at most up to `num_tokens` tokens.

        A window's are let go of block by block once a step of `num_new` tokens is computed.
        """
        chosen = self.groups[group]
        if chosen.kind is GroupKind.STATE:
            return 1
        if chosen.kind is GroupKind.WINDOW:
            # The window of the last whole block's end, which may begin and end within a block.
            seen = chosen.window_tokens - 1 + num_new + 2 * (self.block_tokens - 1)
            num_tokens = min(num_tokens, seen)
        return -(-num_tokens // chosen.page_tokens)

    def most_bytes(self, num_tokens: int, num_new: int = 1) -> int:
        """Bytes that a sequence holds at most up to `num_tokens` tokens, over all groups."""
        return sum(
            self.most_pages(g, num_tokens, num_new) * group.page_bytes
            for g, group in enumerate(self.groups)
        )

    @property
    def is_divisible(self) -> bool:
        """Whether the first tokens of a block are worth something without the rest."""
        return all(group.kind is GroupKind.FULL for group in self.groups)

    @property
    def has_state(self) -> bool:
        """Whether a rejected draft could not be taken back: a state knows no way back."""
        return any(group.kind is GroupKind.STATE for group in self.groups)

    def pages_per_block(self, group: int) -> int:
        """Pages of a group in one block; a state has one at a block's end."""
        chosen = self.groups[group]
        if chosen.kind is GroupKind.STATE:
            return 1
        return self.block_tokens // chosen.page_tokens

    def first_needed_block(self, group: int, num_tokens: int) -> int:
        """The first block that a window still sees when `num_tokens` are in the cache."""
        window = self.groups[group].window_tokens
        return max(0, num_tokens - (window - 1)) // self.block_tokens

    def is_kept(self, group: int, block: int) -> bool:
        """Whether a window's pages of a block stay for a checkpoint behind it."""
        spacing = self.groups[group].checkpoint_tokens
        end = (block + 1) * self.block_tokens
        checkpoint = -(-end // spacing) * spacing
        return block >= self.first_needed_block(group, checkpoint)

    def next_state_border(self, num_tokens: int) -> int | None:
        """The next position where a state is to be kept, past `num_tokens`; None without states."""
        spacings = [g.checkpoint_tokens for g in self.groups if g.kind is GroupKind.STATE]
        if not spacings:
            return None
        return min((num_tokens // spacing + 1) * spacing for spacing in spacings)


def _kind(row: RowGroup) -> GroupKind:
    if not row.tokens_per_row:
        return GroupKind.WINDOW if "window" in row.name else GroupKind.STATE
    if "index" in row.name:
        return GroupKind.INDEX
    return GroupKind.FULL if row.tokens_per_row == 1 else GroupKind.COMPRESSED


def _group(row: RowGroup, block: int, spacing: int) -> CacheGroup:
    kind = _kind(row)
    if kind is GroupKind.STATE:
        return CacheGroup(
            name=row.name,
            kind=kind,
            page_tokens=block,
            page_bytes=row.bytes_per_sequence,
            checkpoint_tokens=spacing,
        )
    rows = row.rows_per_page
    return CacheGroup(
        name=row.name,
        kind=kind,
        page_tokens=row.page_tokens,
        page_bytes=rows * row.row_bytes * len(row.layers),
        window_tokens=row.fixed_rows if kind is GroupKind.WINDOW else 0,
        checkpoint_tokens=spacing if kind is GroupKind.WINDOW else 0,
    )
