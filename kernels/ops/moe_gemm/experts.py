"""The weights of a layer's experts, in one of three formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.checks import check_shape
from kernels.errors import ShapeError
from kernels.ops.block_fp8_gemm.formats.reference import (
    MXFP4_GROUP,
    dequantise_blocks,
    unpack_mxfp4,
)

# E experts, I inner width, D model width; 2I: gate rows first, then up rows.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """Gate-and-up and down projections of all experts.

    Shapes: without scales gate_up (E, 2I, D) and down (E, D, I) in the activations' dtype; e4m3fn
    of the same shapes with scales (E, ceil(2I/block), ceil(D/block)) and (E, ceil(D/block),
    ceil(I/block)), float32 or ue8m0; or mxfp4: uint8 (E, 2I, D/2) and (E, D, I/2), the even
    column in the low nibble, with ue8m0 (E, 2I, D/32) and (E, D, I/32). Biases (E, 2I) and (E, D),
    in any format of floats, or None.

    Raises:
        ShapeError: shapes or dtypes that belong to none of the formats.
    """

    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_scale: torch.Tensor | None = None
    down_scale: torch.Tensor | None = None
    block: int = 128
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None

    def __post_init__(self) -> None:
        e, doubled, d = self.gate_up.shape[0], self.gate_up.shape[1], self.down.shape[1]
        packed = 2 if self.kind == "mxfp4" else 1
        if doubled % 2:
            raise ShapeError(f"gate_up has {doubled} rows; gate and up need an even number")
        if packed == 2 and (d % MXFP4_GROUP or doubled // 2 % MXFP4_GROUP):
            raise ShapeError(f"D={d}, I={doubled // 2}: mxfp4 needs multiples of {MXFP4_GROUP}")
        inner = doubled // 2 // packed
        check_shape(self.gate_up, "E R D", {"E": e, "D": d // packed}, name="gate_up")
        check_shape(self.down, "E D I", {"E": e, "D": d, "I": inner}, name="down")
        for name, scale, n, k in (
            ("gate_up_scale", self.gate_up_scale, doubled, d),
            ("down_scale", self.down_scale, d, doubled // 2),
        ):
            if self.kind == "bf16":
                continue
            if scale is None:
                raise ShapeError(f"{name} is missing: {self.kind} weights come with scales")
            side = self.block if self.kind == "fp8" else 1
            depth = self.block if self.kind == "fp8" else MXFP4_GROUP
            sizes = {"E": e, "N": -(-n // side), "K": -(-k // depth)}
            check_shape(scale, "E N K", sizes, name=name)
        for name, bias, n in (
            ("gate_up_bias", self.gate_up_bias, doubled),
            ("down_bias", self.down_bias, d),
        ):
            if bias is not None:
                check_shape(bias, "E N", {"E": e, "N": n}, name=name)

    @property
    def kind(self) -> str:
        """The format as cases name it; "bf16" stands for the activations' dtype."""
        if self.gate_up.dtype == torch.float8_e4m3fn:
            return "fp8"
        return "mxfp4" if self.gate_up.dtype == torch.uint8 else "bf16"

    @property
    def num_experts(self) -> int:
        """E."""
        return self.gate_up.shape[0]

    @property
    def width(self) -> int:
        """D."""
        return self.down.shape[1]

    @property
    def inner(self) -> int:
        """I."""
        return self.gate_up.shape[1] // 2

    @property
    def num_parameters(self) -> int:
        """Weights and biases, however they are stored."""
        biases = (self.gate_up_bias, self.down_bias)
        in_biases = sum(bias.numel() for bias in biases if bias is not None)
        return 3 * self.num_experts * self.width * self.inner + in_biases

    def expert(self, index: int, wide: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Gate-and-up (2I, D) and down (D, I) of one expert, as numbers in the dtype `wide`."""
        gate_up = self._decode(self.gate_up[index], self.gate_up_scale, index, wide)
        return gate_up, self._decode(self.down[index], self.down_scale, index, wide)

    def _decode(
        self, stored: torch.Tensor, scale: torch.Tensor | None, index: int, wide: torch.dtype
    ) -> torch.Tensor:
        if scale is None:
            return stored.to(wide)
        if self.kind == "fp8":
            return dequantise_blocks(stored, scale[index], self.block, wide)
        return unpack_mxfp4(stored, scale[index], wide)
