"""Schedules of layers whose rows ranks share out, over whole weights: keys travel, or heads.

Streams and names as in `kernels.collectives.schedules.builders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.collectives.schedules.graph import Node, Schedule, on_all_ranks
from kernels.collectives.schedules.nodes import collective, compute


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWork:
    """One layer of one rank's chunk of rows, where ranks hold rows and gather keys and values.

    `project_s` is up to keys and values, `attend_s` all after the gather.
    Units: seconds; `wire_bytes` are the gathered keys and values of all ranks' chunks.
    """

    project_s: float
    attend_s: float
    wire_bytes: int


def context_split(size: int, layers: Sequence[Sequence[ContextWork]]) -> Schedule:
    """Rows on ranks, in chunks: layers[layer][chunk]; the gather of one under another's rows.

    A chunk attends to what its gather and those of the chunks before it brought. It goes on to
    the next layer's keys and values before the chunk after it attends, so that their gather has
    that chunk to hide under.
    """
    nodes: list[Node] = []
    for chunk, work in enumerate(layers[0]):
        nodes += _gathered(0, chunk, work)
    for index, works in enumerate(layers):
        for chunk, work in enumerate(works):
            name = f"attend.{index}.{chunk}"
            nodes.append(compute(name, work.attend_s, f"gather.{index}.{chunk}"))
            if index + 1 < len(layers):
                nodes += _gathered(index + 1, chunk, layers[index + 1][chunk])
    return on_all_ranks("context split", size, nodes)


def _gathered(index: int, chunk: int, work: ContextWork) -> list[Node]:
    name = f"project.{index}.{chunk}"
    gather = collective(f"gather.{index}.{chunk}", "all_gather", work.wire_bytes, name)
    return [compute(name, work.project_s), gather]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWork:
    """One layer of one rank's chunk of rows, where each rank attends with heads of its own.

    `project_s` is up to queries, keys and values, `finish_s` all after the outputs are back.
    Units: seconds; bytes of a rank for both exchanges.
    """

    project_s: float
    attend_s: float
    finish_s: float
    go_bytes: int
    back_bytes: int


def head_split(size: int, layers: Sequence[Sequence[HeadWork]]) -> Schedule:
    """Rows on ranks, heads while they attend: layers[layer][chunk]; exchanges under other chunks.

    A chunk attends after those before it, whose keys it reads. Its next projection directly
    follows the layer's end, so that the exchange of its heads has the other chunks to hide under.
    """
    nodes: list[Node] = []
    for chunk, work in enumerate(layers[0]):
        nodes += _projected(0, chunk, work)
    for index, works in enumerate(layers):
        for chunk, work in enumerate(works):
            here = f"{index}.{chunk}"
            nodes.append(compute(f"attend.{here}", work.attend_s, f"go.{here}"))
            nodes.append(
                collective(f"back.{here}", "all_to_all", work.back_bytes, f"attend.{here}")
            )
        for chunk, work in enumerate(works):
            here = f"{index}.{chunk}"
            nodes.append(compute(f"finish.{here}", work.finish_s, f"back.{here}"))
            if index + 1 < len(layers):
                nodes += _projected(index + 1, chunk, layers[index + 1][chunk])
    return on_all_ranks("head split", size, nodes)


def _projected(index: int, chunk: int, work: HeadWork) -> list[Node]:
    name = f"project.{index}.{chunk}"
    go = collective(f"go.{index}.{chunk}", "all_to_all", work.go_bytes, name)
    return [compute(name, work.project_s), go]
