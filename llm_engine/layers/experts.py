"""A block of experts in place of a layer's MLP."""

# N tokens of all sequences in a step, C channels, E experts, k choices of a token, I inner
# channels of an expert, P pairs of token and choice in the order of their experts.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.ops.moe_gemm.experts import ExpertWeights
from kernels.ops.moe_router.routing import Routing
from llm_engine.layers.linear import Linear
from llm_engine.layers.tiles import OverRows, at_once

# (expert, part, input (P, I), output (P, O), tokens (P,)) -> output; see `Adapters.update_expert`.
AdaptExpert = Callable[
    [int, str, torch.Tensor, torch.Tensor, torch.Tensor],
    torch.Tensor,
]


@dataclass(frozen=True, slots=True)
class Expert:
    """down(silu(gate(x)) · up(x)). Shapes: gate_up C -> 2 I, the gate first; down I -> C."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class MoeBlock:
    """x + Σ_j weight_j · expert_j(norm(x)), over the experts that the router chooses.

    Shapes: norm (C,); router C -> E. All experts are stacked in `grouped`, or each is in `experts`.
    """

    norm: torch.Tensor
    router: Linear
    experts: tuple[Expert, ...]
    routing: Routing
    grouped: ExpertWeights | None = None

    @property
    def num_parameters(self) -> int:
        """Parameters of the block."""
        linears = [linear for expert in self.experts for linear in (expert.gate_up, expert.down)]
        total = self.norm.numel() + self.router.num_parameters
        total += 0 if self.grouped is None else self.grouped.num_parameters
        return total + sum(linear.num_parameters for linear in linears)


def apply_experts(
    experts: Sequence[Expert],
    h_NC: torch.Tensor,
    ids_Nk: torch.Tensor,
    weights_Nk: torch.Tensor,
    swiglu: Callable[..., Any],
    *,
    first: int = 0,
    over_rows: OverRows = at_once,
    adapt: AdaptExpert | None = None,
) -> torch.Tensor:
    """As `kernels.ops.moe_gemm`, but each expert's maps may lie in a packed layout.

    Tokens are sorted by expert, so that the weights of an expert are read once, and those of an
    expert without a token not at all. `experts` are those from id `first` on; choices of others
    add nothing. `adapt` adds to the output of an expert's maps.
    Shapes: h and result (N, C); ids and weights (N, k).
    Numerics: a token's choices are summed in float32 by rising expert id.
    """
    flat = ids_Nk.reshape(-1)
    order_P = torch.argsort(flat, stable=True)
    token_P = order_P // ids_Nk.shape[1]
    route_P1 = weights_Nk.reshape(-1, 1).float().index_select(0, order_P)
    rows_PC = h_NC.index_select(0, token_P)
    y_NC = torch.zeros(h_NC.shape, dtype=torch.float32, device=h_NC.device)
    hit, counts = torch.unique_consecutive(flat.index_select(0, order_P), return_counts=True)
    start = 0
    for index, count in zip(hit.tolist(), counts.tolist(), strict=True):
        end = start + count
        if not 0 <= index - first < len(experts):
            start = end
            continue
        expert, tokens = experts[index - first], token_P[start:end]
        h_PC = rows_PC[start:end]
        gate_up_P2I = over_rows(expert.gate_up, h_PC)
        if adapt is not None:
            gate_up_P2I = adapt(index, "gate_up", h_PC, gate_up_P2I, tokens)
        activated_PI, _ = swiglu(gate_up_P2I)
        down_PC = over_rows(expert.down, activated_PI)
        if adapt is not None:
            down_PC = adapt(index, "down", activated_PI, down_PC, tokens)
        y_NC.index_add_(0, tokens, down_PC * route_P1[start:end])
        start = end
    return y_NC.to(h_NC.dtype)
