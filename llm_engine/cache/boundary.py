"""How much of a matched prefix every group still has: the minimum over the groups."""

from collections.abc import Sequence

from llm_engine.cache.groups import CacheLayout, GroupKind


def reusable_blocks(layout: CacheLayout, held: Sequence[frozenset[int]]) -> int:
    """The longest prefix, in blocks, from which a sequence can go on.

    `held[i]` names the groups that have block i, on the device or in the host tier. Growing
    groups need every block, a window the blocks that the next token sees, a state the block that
    ends there.
    """
    runs = [[0] * (len(held) + 1) for _ in layout.groups]
    for block, groups in enumerate(held):
        for group in range(len(layout.groups)):
            runs[group][block + 1] = runs[group][block] + 1 if group in groups else 0
    for num_blocks in range(len(held), 0, -1):
        needed = (_needed_blocks(layout, group, num_blocks) for group in range(len(runs)))
        if all(run[num_blocks] >= count for run, count in zip(runs, needed, strict=True)):
            return num_blocks
    return 0


def _needed_blocks(layout: CacheLayout, group: int, num_blocks: int) -> int:
    chosen = layout.groups[group]
    if chosen.kind is GroupKind.STATE:
        return 1
    if chosen.kind is GroupKind.WINDOW:
        return num_blocks - layout.first_needed_block(group, num_blocks * layout.block_tokens)
    return num_blocks
