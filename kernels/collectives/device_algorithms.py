"""The ways between devices by kernels: our pushes, and FlashInfer's where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from kernels.collectives import costs, int8
from kernels.collectives.adapters.flashinfer import FORMS, RANKS, installed, unmet_flashinfer
from kernels.collectives.adapters.workspaces import Workspaces
from kernels.collectives.algorithm import MOVES, Algorithm, pushes_of, unmet_limit, workspaces_of
from kernels.collectives.calls import Contract, Reduction
from kernels.collectives.codec import payload_bytes
from kernels.collectives.costs import CostFormula
from kernels.collectives.group import Group
from kernels.collectives.int8 import Movers
from kernels.collectives.push.layout import MAX_RANKS as MAX_PUSH_RANKS
from kernels.collectives.push.pushes import Pushes

Parts = Sequence[torch.Tensor]


def _unmet_pushes(group: Group) -> str | None:
    if group.size > MAX_PUSH_RANKS:
        return f"{group.size} ranks: its loop over ranks is unrolled for {MAX_PUSH_RANKS} at most"
    return unmet_limit(group)


def of_pushes() -> list[Algorithm]:
    """Exact forms by kernels that write to peers, and the int8 forms of the same exchanges."""

    def make(operation: str, name: str, run: Callable[..., None], cost: CostFormula) -> Algorithm:
        is_int8 = name.startswith("int8")
        return Algorithm(
            name=f"push/{name}",
            operation=operation,
            transport="push",
            contracts=("int8",) if is_int8 else MOVES,
            run=lambda fabric, *args: run(pushes_of(fabric), *args),
            cost_s=costs.quantised(cost) if is_int8 else cost,
            unmet=_unmet_pushes,
        )

    return [
        make("all_reduce", "two_shot", Pushes.two_shot, costs.two_shot_s),
        make("all_reduce", "one_shot", Pushes.one_shot, costs.one_shot_s),
        make("all_reduce", "int8_two_shot", _push_int8_all_reduce, costs.two_shot_s),
        make("reduce_scatter", "direct", Pushes.reduce_scatter, costs.half_direct_s),
        make("reduce_scatter", "int8", _push_int8_scatter, costs.half_direct_s),
        make("all_gather", "direct", Pushes.all_gather, costs.half_direct_s),
        make("all_gather", "int8", _push_int8_gather, costs.half_direct_s),
        make("all_to_all", "direct", Pushes.all_to_all, costs.half_direct_s),
        make("all_to_all", "int8", _push_int8_all_to_all, costs.half_direct_s),
        make("broadcast", "direct", Pushes.broadcast, costs.direct_broadcast_s),
    ]


def of_flashinfer() -> list[Algorithm]:
    """What FlashInfer has for PCIe. Its sums keep an order of its own."""

    def make(
        operation: str,
        contracts: tuple[Contract, ...],
        run: Callable[..., None],
        cost: CostFormula,
        dtypes: tuple[str, ...],
    ) -> Algorithm:
        return Algorithm(
            name=f"flashinfer/{FORMS[operation].method}",
            operation=operation,
            transport="flashinfer",
            contracts=contracts,
            run=lambda fabric, *args: run(workspaces_of(fabric), *args),
            cost_s=cost,
            unmet=partial(_unmet_workspace, operation),
            dtypes=dtypes,
            reductions=("sum",),
            made_by=installed,
        )

    fast: tuple[Contract, ...] = ("fast",)
    halves = ("bfloat16", "float16")
    return [
        make("all_reduce", fast, Workspaces.all_reduce, costs.two_shot_s, halves),
        make("all_gather", MOVES, Workspaces.all_gather, costs.half_direct_s, ()),
        make("reduce_scatter", fast, Workspaces.reduce_scatter, costs.half_direct_s, halves[:1]),
    ]


def _unmet_workspace(operation: str, group: Group) -> str | None:
    if group.size not in RANKS:
        return f"{group.size} ranks: it takes {', '.join(map(str, RANKS))}"
    return unmet_flashinfer(operation) or unmet_limit(group)


def _push_movers(pushes: Pushes, longest_bytes: int) -> Movers:
    return Movers(
        rank=pushes.rank,
        size=pushes.size,
        all_to_all=lambda out, into: pushes.all_to_all(out, into, longest_bytes),
        all_gather=pushes.all_gather,
        # Launches overlap by themselves, and all belong on one stream.
        overlaps=False,
    )


def _push_int8_all_reduce(pushes: Pushes, x_N: torch.Tensor, reduction: Reduction) -> None:
    """Chunk by chunk, each within the bytes that the call was sized for."""
    for chunk_N in x_N.split(int8.CHUNK):
        longest_bytes = payload_bytes(-(-len(chunk_N) // pushes.size))
        int8.all_reduce(chunk_N, reduction, _push_movers(pushes, longest_bytes))


def _push_int8_scatter(
    pushes: Pushes, parts: Parts, out_N: torch.Tensor, reduction: Reduction
) -> None:
    longest_bytes = payload_bytes(max(map(len, parts)))
    int8.reduce_scatter(parts, out_N, reduction, _push_movers(pushes, longest_bytes))


def _push_int8_gather(pushes: Pushes, parts: Parts) -> None:
    int8.all_gather(parts, _push_movers(pushes, 0))


def _push_int8_all_to_all(pushes: Pushes, outgoing: Parts, incoming: Parts, longest: int) -> None:
    int8.all_to_all(outgoing, incoming, _push_movers(pushes, payload_bytes(longest)))
