"""Linear maps, several of them fused into one matrix where they share their input."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from kernels.native.library import pool
from kernels.ops.packed_gemm.native import multiply
from kernels.ops.packed_gemm.quantised import PackedMatrix, QuantisedMatrix
from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.scaled_matrix import ScaledMatrix
from llm_engine.weights.checkpoint import BlockWeights, Checkpoint, ScaledWeights

Stored = torch.Tensor | BlockWeights | ScaledWeights
# The row count the packing is tuned for; other counts give the same results.
_PACKED_FOR_ROWS = 8


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + b. Shapes: W (out, in); b (out,) or None; x (N, in); y (N, out).

    In bfloat16 on a CPU with oneDNN's bfloat16 kernels, W is kept in oneDNN's blocked layout:
    plain row-major weights are packed again at every call, which at few rows costs more than
    the product itself. `packed` and `scaled` hold weights in forms of their files instead.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    is_packed: bool
    num_parameters: int
    packed: PackedMatrix | None = None
    scaled: ScaledMatrix | None = None

    @classmethod
    def build(
        cls, weight: torch.Tensor, bias: torch.Tensor | None = None, *, keeps_rows: bool = False
    ) -> Self:
        """Choose the layout for this weight's dtype and device, unless slices will be taken."""
        num_parameters = weight.numel() + (0 if bias is None else bias.numel())
        # oneDNN divides by the number of rows, of which a rank may have none.
        is_packed = can_pack(weight) and not keeps_rows and weight.numel() > 0
        if is_packed:
            reorder = cast(Any, torch.ops.mkldnn)._reorder_linear_weight
            weight = reorder(weight.contiguous(), _PACKED_FOR_ROWS)
        return cls(weight, bias, is_packed, num_parameters)

    @classmethod
    def pack(cls, matrix: QuantisedMatrix, bias: torch.Tensor | None = None) -> Self:
        """Keep a quantised weight in its own precision, for the native kernels."""
        threads = pool(torch.get_num_threads())
        num_parameters = matrix.quants_NK.numel() + (0 if bias is None else bias.numel())
        packed = PackedMatrix(matrix, bias, threads)
        return cls(None, bias, False, num_parameters, packed)

    @classmethod
    def of_blocks(cls, matrix: ScaledMatrix) -> Self:
        """Keep a weight in small floats as its file has it, for the product that reads those."""
        return cls(None, None, False, matrix.num_parameters, scaled=matrix)

    @property
    def packed_matrix(self) -> PackedMatrix:
        """The quantised weight, which must be there."""
        assert self.packed is not None
        return self.packed

    def __call__(self, x_NI: torch.Tensor) -> torch.Tensor:
        """Apply the map."""
        if self.packed is not None:
            return multiply(x_NI, self.packed, pool(torch.get_num_threads()))
        if self.scaled is not None:
            return self.scaled(x_NI)
        assert self.weight is not None
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


def load_fused_linear(
    checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype, forms: KeptForms = PLAIN
) -> Linear:
    """Take `<name>.weight` and, where there is one, `<name>.bias` of each name, stacked.

    Weights that the checkpoint gives in quantised form stay in it, and FP8 blocks where `forms`
    has a product for them.
    Numerics: one rounding from the file's dtype to `dtype`.
    Raises: UnsupportedModel if a weight is missing.
    """
    weights = [_taken(checkpoint, f"{name}.weight", forms) for name in names]
    biases: list[torch.Tensor | None] = [
        checkpoint.take(f"{name}.bias").to(dtype) if checkpoint.has(f"{name}.bias") else None
        for name in names
    ]
    bias = None
    if any(bias is not None for bias in biases):
        bias = _stack(
            [
                torch.zeros(_num_rows(weight), dtype=dtype) if bias is None else bias
                for weight, bias in zip(weights, biases, strict=True)
            ]
        )
    quantised = [weight for weight in weights if isinstance(weight, BlockWeights)]
    if len(quantised) == len(weights):
        return Linear.pack(stack_quantised(quantised), bias)
    scaled = [weight for weight in weights if isinstance(weight, ScaledWeights)]
    if len(scaled) == len(weights) and forms.fp8_gemm is not None:
        return Linear.of_blocks(ScaledMatrix.stack(scaled, bias, forms.fp8_gemm))
    plain = [w if isinstance(w, torch.Tensor) else w.dequantised() for w in weights]
    stacked = _stack([weight.to(dtype) for weight in plain])
    return Linear.build(stacked, bias, keeps_rows=checkpoint.keeps_rows)


def _taken(checkpoint: Checkpoint, name: str, forms: KeptForms) -> Stored:
    """A matrix in the form that it keeps."""
    packed = checkpoint.take_packed(name)
    if packed is not None:
        return packed
    scaled = None if forms.fp8_gemm is None else checkpoint.take_scaled(name)
    return checkpoint.take(name) if scaled is None else scaled


def stack_quantised(parts: Sequence[BlockWeights]) -> QuantisedMatrix:
    """Matrices below one another, in the narrowest form that holds them all exactly."""
    bits = max(part.bits for part in parts)
    group = min(part.group for part in parts)
    bits = 8 if group == 16 else bits
    has_minima = any(part.minima_NG is not None for part in parts)
    minima = [_spread(_minima(part), part.group // group) for part in parts]
    return QuantisedMatrix(
        _stack([part.quants_NK.to(torch.uint8 if bits == 4 else torch.int8) for part in parts]),
        _stack([_spread(part.scales_NG, part.group // group) for part in parts]),
        _stack(minima) if has_minima else None,
        bits=bits,
        group=group,
    )


def _minima(part: BlockWeights) -> torch.Tensor:
    return torch.zeros_like(part.scales_NG) if part.minima_NG is None else part.minima_NG


def _spread(x_NG: torch.Tensor, times: int) -> torch.Tensor:
    """The scales of groups cut into `times` smaller ones."""
    return x_NG if times == 1 else x_NG.repeat_interleave(times, dim=1)


def _num_rows(weight: Stored) -> int:
    if isinstance(weight, torch.Tensor):
        return weight.shape[0]
    return weight.num_rows if isinstance(weight, ScaledWeights) else weight.quants_NK.shape[0]


def _stack(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
