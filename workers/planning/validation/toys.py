"""Small transformer layers whose steps are predicted and run: sizes, weights, and what they do.

Legend: T rows, C channels, H heads, D head dim, I inner channels, E experts, Q output channels.
Routing is fixed and even: expert e takes the tokens t with e in {t, t + 1} mod E.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workers.planning.validation.ops import Ops

BLOCK = 64  # rows of queries at a time: each attends to all keys up to its own block's end


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """One model: layers over `num_tokens` in all. Experts replace the inner layer where given."""

    name: str
    num_layers: int
    num_tokens: int
    channels: int
    heads: int
    inner: int
    num_experts: int = 0
    head_dim: int = 64
    is_causal: bool = True
    chunks: tuple[int, ...] = (512,)


TOYS = (
    Toy(
        name="dense",
        num_layers=2,
        num_tokens=512,
        channels=512,
        heads=8,
        inner=1024,
        chunks=(128, 512),
    ),
    Toy(
        name="experts",
        num_layers=2,
        num_tokens=512,
        channels=384,
        heads=6,
        inner=384,
        num_experts=8,
        chunks=(128, 512),
    ),
    Toy(
        name="video",
        num_layers=2,
        num_tokens=384,
        channels=512,
        heads=8,
        inner=1536,
        is_causal=False,
        chunks=(384,),
    ),
)


Weights = dict[str, torch.Tensor]


def make_weights(toy: Toy, layer: int, device: str) -> Weights:
    """All weights of a layer, the same on every rank."""
    H, C, inner = toy.heads * toy.head_dim, toy.channels, toy.inner
    shapes = {"qkv": (3, H, C), "out": (C, H)}
    shapes |= {"up": (2, inner, C), "down": (C, inner)}
    if toy.num_experts:
        shapes |= {
            "expert_up": (toy.num_experts, 2, inner, C),
            "expert_down": (toy.num_experts, C, inner),
        }
    if device == "meta":
        return {name: torch.empty(shape, device=device) for name, shape in shapes.items()}
    generator = torch.Generator().manual_seed(1000 + layer)
    return {
        name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }


def sharded(weights: Weights, rank: int, size: int) -> Weights:
    """A rank's heads and inner channels."""

    def part(x: torch.Tensor, dim: int) -> torch.Tensor:
        return x.chunk(size, dim)[rank].contiguous()

    dims = {"qkv": 1, "out": 1, "up": 1, "down": 1, "expert_up": 2, "expert_down": 2}
    return {name: part(x, dims[name]) for name, x in weights.items()}


def with_own_experts(weights: Weights, rank: int, size: int) -> Weights:
    """All of a layer but the experts, of which a rank has its own alone."""
    own = {n: x.chunk(size)[rank] for n, x in weights.items() if n.startswith("expert")}
    return weights | own


def inner_layer(ops: Ops, weights: Weights, x_TC: torch.Tensor) -> torch.Tensor:
    """Up, gate, down: the plain layer, or the expert that every token passes."""
    gated_TI = ops.gate(ops.gemm(x_TC, weights["up"].flatten(0, 1)))
    return ops.gemm(gated_TI, weights["down"])


def experts_of(
    ops: Ops,
    weights: Weights,
    x_TC: torch.Tensor,
    into_TC: torch.Tensor,
    indices: list[torch.Tensor],
) -> None:
    """Each expert's rows through it, added to `into`; indices[e] are the rows of expert e."""
    for up, down, index_T in zip(
        weights["expert_up"], weights["expert_down"], indices, strict=True
    ):
        gated_TI = ops.gate(ops.gemm(ops.rows(x_TC, index_T), up.flatten(0, 1)))
        ops.scatter(into_TC, index_T, ops.gemm(gated_TI, down))


def rows_of_expert(toy: Toy, expert: int, num_rows: int, device: str) -> torch.Tensor:
    """The rows that an expert takes of `num_rows`, a multiple of the number of experts."""
    E = toy.num_experts
    rows = [t for t in range(num_rows) if expert in (t % E, (t + 1) % E)]
    return torch.tensor(rows, device=device)
