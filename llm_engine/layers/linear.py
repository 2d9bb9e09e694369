"""Linear maps, several of them fused into one matrix where they share their input."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from llm_engine.weights.checkpoint import Checkpoint

# The row count the packing is tuned for; other counts give the same results.
_PACKED_FOR_ROWS = 8


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + b. Shapes: W (out, in); b (out,) or None; x (N, in); y (N, out).

    In bfloat16 on a CPU with oneDNN's bfloat16 kernels, W is kept in oneDNN's blocked layout:
    plain row-major weights are packed again at every call, which at few rows costs more than
    the product itself.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    is_packed: bool
    num_parameters: int

    @classmethod
    def build(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Self:
        """Choose the layout for this weight's dtype and device."""
        num_parameters = weight.numel() + (0 if bias is None else bias.numel())
        is_packed = can_pack(weight)
        if is_packed:
            reorder = cast(Any, torch.ops.mkldnn)._reorder_linear_weight
            weight = reorder(weight.contiguous(), _PACKED_FOR_ROWS)
        return cls(weight, bias, is_packed, num_parameters)

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        """Apply the map."""
        if self.is_packed:
            linear = cast(Any, torch.ops.mkldnn)._linear_pointwise.default
            return linear(x_NI, self.weight, self.bias, "none", [], "")
        return F.linear(x_NI, self.weight, self.bias)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN has a blocked layout for this weight here."""
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and bool(cast(Any, torch.ops.mkldnn)._is_mkldnn_bf16_supported())
    )


def load_fused_linear(checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype) -> Linear:
    """Take `<name>.weight` and, where there is one, `<name>.bias` of each name, stacked.

    Numerics: one rounding from the file's dtype to `dtype`.
    Raises: UnsupportedModel if a weight is missing.
    """
    weights = [checkpoint.take(f"{name}.weight").to(dtype) for name in names]
    biases: list[torch.Tensor | None] = [
        checkpoint.take(f"{name}.bias").to(dtype) if checkpoint.has(f"{name}.bias") else None
        for name in names
    ]
    if all(bias is None for bias in biases):
        return Linear.build(_stack(weights))
    filled = [
        torch.zeros(weight.shape[0], dtype=dtype) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return Linear.build(_stack(weights), _stack(filled))


def _stack(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
