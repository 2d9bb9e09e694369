"""Attention when each key lies on one rank, by its position: keys go around, or queries do."""

# R rows of the step on this rank, N on all, H query heads, K key/value heads, D head dim,
# P pages that the step's spans read, Z slots of a page on one rank.

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

from kernels.collectives.protocol import Communicator
from kernels.collectives.schedules.builders import ring_attention
from kernels.collectives.schedules.graph import Schedule
from kernels.collectives.schedules.threads import Ran, run_serially, run_threads
from kernels.ops.full_attention import merge_lse
from kernels.ops.rotary_insert import Insertion, Rotation
from llm_engine.device import upload
from llm_engine.layers.attention import AttentionOps, PagedCache
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.parallel.share_attention import ShareAttention
from llm_engine.parallel.stripes import Reach, owned_positions, reaches, slots

_Part = tuple[torch.Tensor, torch.Tensor]


class PassedKeys:
    """Keys go around in blocks, double buffered.

    The block at hand is attended while it is sent on and the next one arrives. A rank holds two
    blocks: the pages that the spans read, of one layer and one rank.
    Source: Liu et al. 2023, arXiv:2310.01889.
    """

    def __init__(
        self,
        cp: Communicator,
        cache: PagedCache,
        spans: Sequence[AttentionSpan],
        ops: AttentionOps,
        *,
        is_overlapped: bool = True,
    ) -> None:
        """Prepare what all layers share; all ranks give the same spans."""
        self._cp = cp
        self._run = run_threads if is_overlapped else run_serially
        size, rank = cp.group.size, cp.group.rank
        tables = page_tables(spans, cache.page_size * size)
        # Pages have the same numbers on all ranks, so that blocks have one shape and one order.
        pages = list(dict.fromkeys(page for table in tables for page in table))
        places = {page: place for place, page in enumerate(pages)}
        placed = [[places[page] for page in table] for table in tables]
        self._pages_P = upload(pages, torch.int64, _place(cache))
        num_rows = _num_rows(spans, rank, size)
        self._shares = [
            _share(ops, cache, spans, [(num_rows, reaches(spans, rank, keeper, size))], placed)
            for keeper in _keepers(cp)
        ]

    def __call__(self, q_RHD: torch.Tensor, cache_PZ2KD: torch.Tensor) -> torch.Tensor:
        """Turned queries over what all ranks have stored. Shapes: q (R, H, D); result float32."""
        o_RHD, _ = self.attend(q_RHD, cache_PZ2KD)
        return o_RHD

    def attend(
        self, q_RHD: torch.Tensor, cache_PZ2KD: torch.Tensor
    ) -> tuple[torch.Tensor, list[Ran]]:
        """The result, and what ran when."""
        own_PZ2KD = cache_PZ2KD.index_select(0, self._pages_P)
        buffers = (own_PZ2KD, torch.empty_like(own_PZ2KD))
        size, rank = self._cp.group.size, self._cp.group.rank
        right, left = (rank + 1) % size, (rank - 1) % size
        merged: list[_Part] = []

        def attend(step: int) -> None:
            part = self._shares[step](q_RHD, buffers[step % 2])
            merged[:] = [merge_lse(*merged[0], *part) if merged else part]

        def move(step: int) -> None:
            self._cp.swap(buffers[(step - 1) % 2], right, buffers[step % 2], left)

        # Whether inference mode is on belongs to a thread: the one that moves has to be told.
        move_in_mode = torch.inference_mode(torch.is_inference_mode_enabled())(move)
        actions = {f"attend.{step}": functools.partial(attend, step) for step in range(size)}
        actions |= {f"pass.{s}": functools.partial(move_in_mode, s) for s in range(1, size)}
        ran = self._run(_schedule(size), rank, actions)
        return merged[0][0], ran


class PassedQueries:
    """Queries go to all ranks, and each sends back its part of the answer.

    Source: Yang et al. 2024, arXiv:2411.01783 ("pass-Q").
    """

    def __init__(
        self,
        cp: Communicator,
        cache: PagedCache,
        spans: Sequence[AttentionSpan],
        ops: AttentionOps,
    ) -> None:
        """Prepare what all layers share; all ranks give the same spans."""
        self._cp = cp
        size, rank = cp.group.size, cp.group.rank
        self._row_counts = [_num_rows(spans, other, size) for other in range(size)]
        asked = [
            (count, reaches(spans, other, rank, size))
            for other, count in enumerate(self._row_counts)
        ]
        self._share = _share(ops, cache, spans, asked, page_tables(spans, cache.page_size * size))

    def __call__(self, q_RHD: torch.Tensor, cache_PZ2KD: torch.Tensor) -> torch.Tensor:
        """See `PassedKeys`."""
        q_NHD = self._cp.all_gather(q_RHD)
        o_NHD, lse_NH = self._share(q_NHD, cache_PZ2KD)
        packed_NHX = torch.cat((o_NHD, lse_NH.unsqueeze(-1)), dim=-1)
        back, counts = self._cp.all_to_all(packed_NHX, self._row_counts)
        parts = back.split(counts)
        merged: _Part | None = None
        for keeper in _keepers(self._cp):
            # As a block's part lies in memory: what runs over it may round by place.
            o_RHD = parts[keeper][..., :-1].contiguous()
            lse_RH = parts[keeper][..., -1].contiguous()
            merged = merge_lse(*merged, o_RHD, lse_RH) if merged else (o_RHD, lse_RH)
        assert merged is not None
        return merged[0]


class RingAttention:
    """Each rank's queries meet every rank's share of the keys, one share after the other.

    Numerics: the parts of a row are merged in float32 in one order, from its own rank's down
    around the ring, whichever way they were made and whenever they came.
    """

    def __init__(
        self,
        cp: Communicator,
        cache: PagedCache,
        spans: Sequence[AttentionSpan],
        ops: AttentionOps,
        make_rotation: Callable[[torch.Tensor], Rotation],
        *,
        passes_keys: Sequence[bool],
    ) -> None:
        """Prepare what all layers share; all ranks give the same spans.

        `cache` has this rank's slots of each page; `make_rotation` turns positions; `passes_keys`
        says for each span what travels.
        """
        self._cache, self._ops = cache, ops
        size, rank = cp.group.size, cp.group.rank
        positions = [owned_positions(span, rank, size) for span in spans]
        stored = [slot for s in spans for slot in slots(s, rank, size, cache.page_size * size)]
        flat = [position for run in positions for position in run]
        place = _place(cache)
        self._rotation = make_rotation(upload(flat, torch.int64, place))
        self._insertion = Insertion(slots=upload(stored, torch.int64, place))
        keys_first = sorted(range(len(spans)), key=lambda index: not passes_keys[index])
        bounds = [0, *accumulate(len(run) for run in positions)]
        order = [row for index in keys_first for row in range(*bounds[index : index + 2])]
        restored = sorted(range(len(order)), key=order.__getitem__)
        self._order_R = upload(order, torch.int64, place)
        self._restored_R = upload(restored, torch.int64, place)
        num_keys = sum(passes_keys)
        with_keys, with_queries = keys_first[:num_keys], keys_first[num_keys:]
        self._ways: list[tuple[int, PassedKeys | PassedQueries]] = []
        if with_keys:
            count = sum(len(positions[index]) for index in with_keys)
            keyed = [spans[index] for index in with_keys]
            # Streams of a schedule are threads of the processor: on a device they take turns.
            way = PassedKeys(cp, cache, keyed, ops, is_overlapped=place.type == "cpu")
            self._ways.append((count, way))
        if with_queries:
            count = sum(len(positions[index]) for index in with_queries)
            way = PassedQueries(cp, cache, [spans[index] for index in with_queries], ops)
            self._ways.append((count, way))

    def __call__(
        self, layer: int, q_RHD: torch.Tensor, k_RKD: torch.Tensor, v_RKD: torch.Tensor
    ) -> torch.Tensor:
        """See `llm_engine.layers.step.Attend`."""
        cache_PZ2KD = self._cache.layers[layer]
        if len(q_RHD):
            q_RHD, _, _ = self._ops.rotary_insert(
                q_RHD, k_RKD, v_RKD, cache_PZ2KD, rotation=self._rotation, insertion=self._insertion
            )
        parts = q_RHD.index_select(0, self._order_R).split([count for count, _ in self._ways])
        outputs = [way(part, cache_PZ2KD) for part, (_, way) in zip(parts, self._ways, strict=True)]
        return torch.cat(outputs).index_select(0, self._restored_R).to(q_RHD.dtype)


def keys_are_fewer(cache: PagedCache, span: AttentionSpan, num_heads: int, num_ranks: int) -> bool:
    """Whether keys that go around are fewer bytes than queries there and parts of answers back.

    The same on all ranks of a ring, whose `num_heads` are those of a rank's queries.
    """
    page_size = cache.page_size * num_ranks
    layer = cache.layers[0]
    num_slots = -(-span.end // page_size) * page_size
    key_bytes = num_slots * layer[0, 0].numel() * layer.itemsize
    # A part of an answer, and its log-sum-exp, is float32.
    query_bytes = num_heads * (cache.head_dim * layer.itemsize + (cache.head_dim + 1) * 4)
    return key_bytes <= span.num_tokens * query_bytes


def page_tables(spans: Sequence[AttentionSpan], page_size: int) -> list[Sequence[int]]:
    """The pages of each span that hold a token."""
    return [span.pages[: -(-span.end // page_size)] for span in spans]


def _share(
    ops: AttentionOps,
    cache: PagedCache,
    spans: Sequence[AttentionSpan],
    asked: Sequence[tuple[int, Sequence[Reach]]],
    tables: Sequence[Sequence[int]],
) -> ShareAttention:
    decodes = all(span.num_tokens == 1 for span in spans)
    scale, place = cache.head_dim**-0.5, _place(cache)
    return ShareAttention(ops, asked, tables, scale=scale, decodes=decodes, place=place)


def _place(cache: PagedCache) -> torch.device:
    return cache.layers[0].device


def _num_rows(spans: Sequence[AttentionSpan], rank: int, size: int) -> int:
    return sum(len(owned_positions(span, rank, size)) for span in spans)


def _keepers(cp: Communicator) -> list[int]:
    """The ranks whose keys this one meets, in order: as blocks come around."""
    return [(cp.group.rank - step) % cp.group.size for step in range(cp.group.size)]


@functools.lru_cache(maxsize=16)
def _schedule(size: int) -> Schedule:
    return ring_attention(size, 0.0, 0)
