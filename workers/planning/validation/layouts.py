"""The ways that two ranks can share a toy's layers, and what a rank builds for one of them."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.calibration.seat import SIZE
from workers.planning.validation.chain import Segment, chained
from workers.planning.validation.expert_rows import DispatchedStep, ReducedStep
from workers.planning.validation.rows import RowStep
from workers.planning.validation.step import Plan, Share
from workers.planning.validation.tensors import TensorStep
from workers.planning.validation.toys import Toy, Weights, make_weights, sharded, with_own_experts

AnyStep = TensorStep | RowStep
_STEPS: Mapping[str, type[AnyStep]] = {
    "tp": TensorStep,
    "tp split": TensorStep,
    "cp gather": RowStep,
    "cp heads": RowStep,
    "cp+ep": DispatchedStep,
    "cp+ag/rs": ReducedStep,
}


def layouts_of(toy: Toy) -> tuple[str, ...]:
    """The ways that a toy's ranks can share it.

    Chunks of one prompt cannot hide each other where each token attends to all.
    """
    if toy.num_experts:
        return "tp", "tp split", "cp+ep", "cp+ag/rs"
    return (
        ("tp", "tp split", "cp gather", "cp heads")
        if toy.is_causal
        else (
            "tp",
            "cp gather",
            "cp heads",
        )
    )


def weights_for(toy: Toy, layout: str, rank: int, device: str) -> list[Weights]:
    """A rank's weights of all layers under a layout."""
    found: list[Weights] = []
    for layer in range(toy.num_layers):
        whole = make_weights(toy, layer, device)
        if layout.startswith("tp"):
            found.append(sharded(whole, rank, SIZE))
        elif layout == "cp+ep":
            found.append(with_own_experts(whole, rank, SIZE))
        elif layout == "cp+ag/rs":
            experts = sharded(whole, rank, SIZE)
            found.append(whole | {n: x for n, x in experts.items() if n.startswith("expert")})
        else:
            found.append(whole)
    return found


def build(plan: Plan, share: Share) -> tuple[AnyStep, Segment]:
    """A rank's step and all of its nodes."""
    step = _STEPS[plan.layout](plan, share)
    return step, chained(plan.name, step.segments())
