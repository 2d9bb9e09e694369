"""Memory for weights: aligned, apart, shared between takers, given back with its last part."""

import gc
import weakref

import torch

from kernels.native.huge_pages import HugePages

_BLOCK_BYTES = 32 << 20


def test_parts_are_aligned_zeroed_and_apart() -> None:
    pages = HugePages()
    parts = [pages.take(size)[0] for size in (1, 63, 64, 65, 4097)]
    for value, part in enumerate(parts, 1):
        assert part.data_ptr() % 64 == 0
        assert not part.any()
        part.fill_(value)
    for value, part in enumerate(parts, 1):
        assert bool((part == value).all())


def test_parts_share_a_block_until_it_is_full() -> None:
    pages = HugePages()
    _, first = pages.take(_BLOCK_BYTES - 64)
    _, second = pages.take(64)
    _, third = pages.take(1)
    assert first is second
    assert third is not first
    assert first.data_ptr() % (2 << 20) == 0


def test_more_than_a_block_is_one_part() -> None:
    part, block = HugePages().take(_BLOCK_BYTES + 1)
    assert part.numel() == _BLOCK_BYTES + 1
    assert block.numel() >= part.numel()
    part[-1] = 7
    assert part[-1] == 7


def test_a_block_lives_as_long_as_its_parts() -> None:
    pages = HugePages()
    kept = pages.take(64)
    block = weakref.ref(kept[1])
    assert pages.take(64)[1] is kept[1]
    del kept
    gc.collect()
    assert block() is None
    assert torch.equal(pages.take(3)[0], torch.zeros(3, dtype=torch.uint8))
