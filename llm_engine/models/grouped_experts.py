"""Reading a layer's experts into the tensors that the grouped product takes."""

# E experts, I inner channels, C channels.

from collections.abc import Callable, Sequence

import torch

from kernels.ops.moe_gemm.experts import ExpertWeights
from llm_engine.layers.kept_forms import NUMBERS
from llm_engine.weights.checkpoint import Checkpoint

Read = Callable[[str], Sequence[torch.Tensor]]


def load_grouped(
    checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype, kind: str
) -> ExpertWeights:
    """The experts `names`, in the format `kind` of `kernels.ops.moe_gemm`.

    In numbers they are in `dtype`, after one rounding; in any other format as the file has them.
    Raises: UnsupportedModel if a tensor is missing.
    """
    gate_up = [[f"{name}.gate_proj", f"{name}.up_proj"] for name in names]
    down = [[f"{name}.down_proj"] for name in names]
    biases: list[torch.Tensor | None] = [None, None]
    if checkpoint.has(f"{down[0][0]}.bias"):
        biases = [
            _stacked(maps, lambda name: (checkpoint.take(f"{name}.bias").to(dtype),))[0]
            for maps in (gate_up, down)
        ]
    if kind == NUMBERS:
        wide = [
            _stacked(maps, lambda name: (checkpoint.take(f"{name}.weight").to(dtype),))[0]
            for maps in (gate_up, down)
        ]
        return ExpertWeights(
            gate_up=wide[0], down=wide[1], gate_up_bias=biases[0], down_bias=biases[1]
        )
    block = 0

    def scaled(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal block
        found = checkpoint.take_scaled(f"{name}.weight")
        assert found is not None, f"{name} is no matrix in {kind}"
        block = found.block
        return found.values, found.scales

    (gate_up_E, gate_up_scale), (down_E, down_scale) = (
        _stacked(maps, scaled) for maps in (gate_up, down)
    )
    return ExpertWeights(
        gate_up=gate_up_E,
        down=down_E,
        gate_up_scale=gate_up_scale,
        down_scale=down_scale,
        block=block,
        gate_up_bias=biases[0],
        down_bias=biases[1],
    )


def _stacked(maps: Sequence[Sequence[str]], read: Read) -> tuple[torch.Tensor, ...]:
    """What is read of each expert's maps, below one another, in one tensor for all experts.

    Each is written into its place as it comes: a layer's experts never lie in memory twice.
    Shapes: of a map (N, ...); result (E, maps · N, ...).
    """
    wholes: list[torch.Tensor] = []
    for index, names in enumerate(maps):
        for part, name in enumerate(names):
            found = read(name)
            if not wholes:
                rows = [len(names) * len(each) for each in found]
                wholes = [
                    each.new_empty(len(maps), num, *each.shape[1:])
                    for each, num in zip(found, rows, strict=True)
                ]
            for whole, each in zip(wholes, found, strict=True):
                whole[index].narrow(0, part * len(each), len(each)).copy_(each)
    return tuple(wholes)
