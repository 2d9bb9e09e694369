"""Every way to carry out an operation: what it needs, which contracts it keeps, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from kernels.collectives import chain, costs, int8, island, pairwise, ring, staged, tree
from kernels.collectives.algorithm import (
    MOVES,
    Algorithm,
    library_of,
    link_of,
    slots_of,
    unmet_limit,
)
from kernels.collectives.calls import Contract, Reduction
from kernels.collectives.costs import CostFormula
from kernels.collectives.device_algorithms import of_flashinfer, of_pushes
from kernels.collectives.fabric import Fabric, Transport
from kernels.collectives.group import Group
from kernels.collectives.int8 import Movers
from kernels.collectives.library import Library
from kernels.collectives.slots import Slots

Parts = Sequence[torch.Tensor]


def _unmet_islands(group: Group) -> str | None:
    sizes = [len(ranks) for ranks in group.islands]
    if len(sizes) == 2 and sizes[0] == sizes[1] > 1:
        return None
    return f"islands of {sizes or [group.size]} ranks: takes two of equal size, two or more each"


def _island(transport: Transport, fabric: Fabric, x_N: torch.Tensor, reduction: Reduction) -> None:
    island.all_reduce(link_of(fabric, transport), x_N, reduction, fabric.group.islands)


def _ring_scatter(
    transport: Transport, fabric: Fabric, parts: Parts, out_N: torch.Tensor, reduction: Reduction
) -> None:
    copies = [part_N.clone() for part_N in parts]
    ring.reduce_scatter(link_of(fabric, transport), copies, reduction)
    out_N.copy_(copies[fabric.group.rank])


def _movers(transport: Transport, fabric: Fabric) -> Movers:
    """Payloads differ in length between ranks in an all-to-all, so it goes pairwise."""
    link = link_of(fabric, transport)
    return Movers(
        rank=link.rank,
        size=link.size,
        all_to_all=partial(pairwise.all_to_all, link),
        all_gather=partial(ring.all_gather, link),
    )


def _over_link(transport: Transport) -> list[Algorithm]:
    """The algorithms of several steps, the same ones for every transport."""

    def on(function: Callable[..., None]) -> Callable[..., None]:
        return lambda fabric, *args: function(link_of(fabric, transport), *args)

    def coded(function: Callable[..., None]) -> Callable[..., None]:
        return lambda fabric, *args: function(*args, _movers(transport, fabric))

    def make(
        operation: str,
        name: str,
        contracts: tuple[Contract, ...],
        run: Callable[..., None],
        cost_s: CostFormula,
        unmet: Callable[[Group], str | None] = lambda _: None,
    ) -> Algorithm:
        return Algorithm(
            name=f"{transport}/{name}",
            operation=operation,
            transport=transport,
            contracts=contracts,
            run=run,
            cost_s=cost_s,
            unmet=unmet,
        )

    island_run = partial(_island, transport)
    scatter = partial(_ring_scatter, transport)
    coded_a2a = coded(int8.all_to_all)
    return [
        make("all_reduce", "pairwise", MOVES, on(pairwise.all_reduce), _pairwise_s),
        make("all_reduce", "chain", MOVES, on(chain.all_reduce), costs.chain_s),
        make("all_reduce", "island", MOVES, island_run, costs.exact_island_s, _unmet_islands),
        make("all_reduce", "ring", ("fast",), on(ring.all_reduce), costs.ring_s),
        make("all_reduce", "int8_two_shot", ("int8",), coded(int8.all_reduce), _int8_s),
        make("reduce_scatter", "pairwise", MOVES, on(pairwise.reduce_scatter), costs.all_to_all_s),
        make("reduce_scatter", "ring", ("fast",), scatter, costs.half_ring_s),
        make("reduce_scatter", "int8", ("int8",), coded(int8.reduce_scatter), _int8_half_s),
        make("all_gather", "ring", MOVES, on(ring.all_gather), costs.half_ring_s),
        make("all_gather", "int8_ring", ("int8",), coded(int8.all_gather), _int8_half_s),
        make(
            "all_to_all",
            "pairwise",
            MOVES,
            lambda fabric, out, into, _: pairwise.all_to_all(link_of(fabric, transport), out, into),
            costs.all_to_all_s,
        ),
        make(
            "all_to_all",
            "int8_pairwise",
            ("int8",),
            lambda fabric, out, into, _: coded_a2a(fabric, out, into),
            _int8_half_s,
        ),
        make("broadcast", "tree", MOVES, on(tree.broadcast), costs.broadcast_s),
    ]


def _pairwise_s(S: float, N: int, c: costs.LinkCosts) -> float:
    """A pairwise reduce-scatter and a ring all-gather."""
    return costs.all_to_all_s(S, N, c) + costs.half_ring_s(S, N, c)


_int8_s = costs.quantised(_pairwise_s)
_int8_half_s = costs.quantised(costs.half_ring_s)


def _of_slots(transport: Transport) -> list[Algorithm]:
    def make(operation: str, name: str, run: Callable[..., None], cost: CostFormula) -> Algorithm:
        return Algorithm(
            name=f"{transport}/{name}",
            operation=operation,
            transport=transport,
            contracts=MOVES,
            run=lambda fabric, *args: run(slots_of(fabric, transport), *args),
            cost_s=cost,
            unmet=unmet_limit,
        )

    return [
        make("all_reduce", "two_shot", Slots.two_shot, costs.two_shot_s),
        make("all_reduce", "one_shot", Slots.one_shot, costs.one_shot_s),
        make("reduce_scatter", "direct", Slots.reduce_scatter, costs.half_direct_s),
        make("all_gather", "direct", Slots.all_gather, costs.half_direct_s),
        make("all_to_all", "direct", Slots.all_to_all, costs.half_direct_s),
        make("broadcast", "direct", Slots.broadcast, costs.direct_broadcast_s),
    ]


def _library_gather(library: Library, parts: Parts) -> None:
    """The library gathers equal parts alone; unequal ones go around our ring on its messages."""
    if len({len(part_N) for part_N in parts}) == 1:
        library.all_gather(parts)
    else:
        ring.all_gather(library, parts)


def _of_library(transport: Transport) -> list[Algorithm]:
    def make(
        operation: str,
        name: str,
        contracts: tuple[Contract, ...],
        run: Callable[..., None],
        cost: CostFormula,
    ) -> Algorithm:
        return Algorithm(
            name=f"{transport}/{name}",
            operation=operation,
            transport=transport,
            contracts=contracts,
            run=lambda fabric, *args: run(library_of(fabric, transport), *args),
            cost_s=cost,
            unmet=unmet_limit,
        )

    return [
        make("all_reduce", "library", ("fast",), Library.all_reduce, costs.ring_s),
        make("all_reduce", "gather_sum", MOVES, Library.gather_sum, costs.gather_sum_s),
        make("all_gather", "library", MOVES, _library_gather, costs.half_ring_s),
        make(
            "all_to_all",
            "library",
            MOVES,
            lambda library, out, into, _: library.all_to_all(out, into),
            costs.half_direct_s,
        ),
        make("broadcast", "library", MOVES, Library.broadcast, costs.broadcast_s),
    ]


def _staged() -> list[Algorithm]:
    """The slots' operations on copies in the host's memory."""
    return [
        Algorithm(
            name=f"staged/{on_host.name.partition('/')[2]}",
            operation=on_host.operation,
            transport="staged",
            contracts=on_host.contracts,
            run=partial(staged.run, on_host),
            cost_s=costs.host_staged_s,
            unmet=unmet_limit,
        )
        for on_host in _of_slots("shm")
    ]


ALGORITHMS: tuple[Algorithm, ...] = (
    *_of_slots("shm"),
    *_over_link("shm"),
    *_of_library("gloo"),
    *_over_link("gloo"),
    *_over_link("tcp"),
    *_of_library("nccl"),
    *_over_link("nccl"),
    *_of_slots("peer"),
    *of_pushes(),
    *of_flashinfer(),
    *_staged(),
)


def algorithms_for(operation: str) -> tuple[Algorithm, ...]:
    """Every way to carry out an operation, in the order of preference among equals."""
    return tuple(a for a in ALGORITHMS if a.operation == operation)
