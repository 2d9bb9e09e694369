"""Schedules of the patterns that hide transfers under computation, for any number of ranks.

Streams: "compute", and "wire" for what a communicator does; a second communicator has "wire-in".
Names end in the layer and the chunk: `attention.3.0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernels.collectives.schedules.graph import Node, Schedule, on_all_ranks
from kernels.collectives.schedules.nodes import collective, compute


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """One layer of one rank for all tokens of a step.

    Units: seconds; bytes that each of its two reductions moves for a rank.
    """

    attention_s: float
    mlp_s: float
    wire_bytes: int


def blocking_layers(size: int, layers: Sequence[LayerWork]) -> Schedule:
    """Computation and reductions one after the other: what the others are compared with."""
    nodes: list[Node] = []
    last: tuple[str, ...] = ()
    for index, work in enumerate(layers):
        for part, duration_s in (("attention", work.attention_s), ("mlp", work.mlp_s)):
            name, reduce_name = f"{part}.{index}.0", f"reduce_{part}.{index}.0"
            nodes += [
                compute(name, duration_s, *last),
                collective(reduce_name, "all_reduce", work.wire_bytes, name),
            ]
            last = (reduce_name,)
    return on_all_ranks("blocking layers", size, nodes)


def token_split(
    size: int, layers: Sequence[LayerWork], shares: Sequence[float] = (0.5, 0.5)
) -> Schedule:
    """One prompt in chunks of tokens: a chunk computes while the one before is on the wire.

    Attention of a chunk reads the keys and values of those before it, so chunks keep their order
    in each layer. `shares` are the parts of the step's work in each chunk.
    Source: arXiv:2409.11155.
    """
    return _chunked("token split", size, layers, shares, has_order=True)


def micro_batches(size: int, layers: Sequence[LayerWork], num_batches: int = 2) -> Schedule:
    """Requests in batches that do not read each other; the same order, fewer dependencies."""
    shares = [1 / num_batches] * num_batches
    return _chunked("micro-batches", size, layers, shares, has_order=False)


def _chunked(
    name: str, size: int, layers: Sequence[LayerWork], shares: Sequence[float], *, has_order: bool
) -> Schedule:
    nodes: list[Node] = []
    for index, work in enumerate(layers):
        for part, duration_s in (("attention", work.attention_s), ("mlp", work.mlp_s)):
            for chunk, share in enumerate(shares):
                here = f"{part}.{index}.{chunk}"
                after = _needed(part, index, chunk, has_order=has_order)
                size_bytes = work.wire_bytes * share
                nodes += [
                    compute(here, duration_s * share, *after),
                    collective(f"reduce_{here}", "all_reduce", size_bytes, here),
                ]
    return on_all_ranks(name, size, nodes)


def _needed(part: str, index: int, chunk: int, *, has_order: bool) -> list[str]:
    """The chunk's own last reduction, and in attention the chunk before it."""
    if part == "mlp":
        return [f"reduce_attention.{index}.{chunk}"]
    own = [f"reduce_mlp.{index - 1}.{chunk}"] if index else []
    earlier = [f"attention.{index}.{chunk - 1}"] if has_order and chunk else []
    return own + earlier


def split_gemm(
    size: int, gemm_s: float, wire_bytes: int, num_chunks: int, gather_bytes: int = 0
) -> Schedule:
    """A product in chunks of rows, each scattered while the next one is computed.

    With `gather_bytes` its rows lie on all ranks, and the next chunk arrives meanwhile.
    """
    nodes: list[Node] = []
    gathers = [
        collective(f"gather.0.{chunk}", "all_gather", gather_bytes / num_chunks)
        for chunk in range(num_chunks if gather_bytes else 0)
    ]
    nodes += gathers[:1]
    for chunk in range(num_chunks):
        name = f"gemm.0.{chunk}"
        after = [gathers[chunk].name] if gathers else []
        nodes += [
            *gathers[chunk + 1 : chunk + 2],
            compute(name, gemm_s / num_chunks, *after),
            collective(f"scatter.0.{chunk}", "reduce_scatter", wire_bytes / num_chunks, name),
        ]
    return on_all_ranks("split product", size, nodes)


def expert_dispatch(
    size: int, dispatch_bytes: int, combine_bytes: int, shared_s: float, routed_s: float
) -> Schedule:
    """The shared expert computes while tokens travel to the routed ones."""
    nodes = [
        collective("dispatch", "all_to_all", dispatch_bytes),
        compute("shared", shared_s),
        compute("routed", routed_s, "dispatch"),
        collective("combine", "all_to_all", combine_bytes, "routed"),
        compute("add", 0.0, "combine"),
    ]
    return on_all_ranks("shared expert under dispatch", size, nodes)


def ring_attention(size: int, block_s: float, block_bytes: int) -> Schedule:
    """Keys and values go around while the block at hand is attended: two buffers.

    A pass fills the buffer that was attended two steps before.
    """
    nodes: list[Node] = []
    for step in range(size):
        if step + 1 < size:
            after = ([f"pass.{step}"] if step else []) + ([f"attend.{step - 1}"] if step else [])
            nodes.append(collective(f"pass.{step + 1}", "swap", block_bytes, *after))
        nodes.append(compute(f"attend.{step}", block_s, *([f"pass.{step}"] if step else [])))
    return on_all_ranks("ring attention", size, nodes)


def head_groups(
    size: int, num_groups: int, attend_s: float, in_bytes: int, out_bytes: int
) -> Schedule:
    """Heads in groups: group g + 1 arrives and group g - 1 returns while g is attended.

    Arrivals and returns have a communicator each and use the two directions of the links. Exact:
    heads do not meet.
    """
    nodes: list[Node] = []
    for group in range(num_groups):
        arrive, attend, leave = (f"{what}.{group}" for what in ("arrive", "attend", "return"))
        nodes += [
            collective(arrive, "all_to_all", in_bytes / num_groups, stream="wire-in"),
            compute(attend, attend_s / num_groups, arrive),
            collective(leave, "all_to_all", out_bytes / num_groups, attend),
        ]
    return on_all_ranks("head groups", size, nodes)


def pipeline(stage_s: Sequence[Sequence[float]], chunk_bytes: Sequence[int]) -> Schedule:
    """Stages on ranks, chunks of tokens through them: stage_s[rank][chunk] and what it hands on.

    Later chunks of a prompt read more keys and values, so even steps need shrinking chunks; the
    durations are the caller's.
    """
    last = len(stage_s) - 1
    nodes: list[Node] = []
    for rank, durations_s in enumerate(stage_s):
        for chunk, duration_s in enumerate(durations_s):
            if rank:
                nodes.append(_message("receive", rank, rank - 1, chunk, chunk_bytes[chunk]))
            stage = compute(f"stage.{chunk}", duration_s, *([f"receive.{chunk}"] if rank else []))
            nodes.append(replace(stage, rank=rank))
            if rank < last:
                nodes.append(_message("send", rank, rank + 1, chunk, chunk_bytes[chunk]))
    return Schedule(name="pipeline", nodes=tuple(nodes))


def _message(
    kind: Literal["send", "receive"], rank: int, peer: int, chunk: int, size_bytes: int
) -> Node:
    is_send = kind == "send"
    return Node(
        name=f"{kind}.{chunk}",
        rank=rank,
        stream="wire" if is_send else "wire-in",
        kind=kind,
        size_bytes=size_bytes,
        after=(f"stage.{chunk}",) if is_send else (),
        peer=peer,
        tag=str(chunk),
        resource="out" if is_send else "in",
    )
