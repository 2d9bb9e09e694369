"""The MLP block through the native kernels: one call a layer."""

from __future__ import annotations

import ctypes

import torch

from kernels.native.library import MlpBlock, Norm, Pool, library, pool
from kernels.ops.mlp_block.weights import MlpWeights
from kernels.ops.packed_gemm.quantised import PackedMatrix

# N rows, C channels, I inner channels.


class NativeMlpBlock:
    """The weights of a block, ready to be called."""

    def __init__(
        self, *, norm_C: torch.Tensor, eps: float, gate_up: PackedMatrix, down: PackedMatrix
    ) -> None:
        """Keep the weights; the norm is taken in float32."""
        norm_C = norm_C.float().contiguous()
        self._kept = (norm_C, gate_up, down)
        self._block = MlpBlock(
            norm=Norm(norm_C.data_ptr(), eps),
            gate_up=ctypes.pointer(gate_up.weight),
            down=ctypes.pointer(down.weight),
        )
        self.address = ctypes.addressof(self._block)
        self._call = library().mlp_block

    def __call__(self, x_NC: torch.Tensor, threads: Pool) -> torch.Tensor:
        """Add the block's output to x, in place. Shapes: x (N, C)."""
        self._call(threads.handle, self.address, x_NC.data_ptr(), x_NC.shape[0])
        return x_NC


def mlp_block(x_NC: torch.Tensor, weights: MlpWeights, *, quant: str = "groups") -> torch.Tensor:
    """See `kernels.ops.mlp_block.mlp_block`; packs first, which a model does once."""
    assert quant == "groups"
    threads = pool(torch.get_num_threads())
    block = NativeMlpBlock(
        norm_C=weights.norm_C,
        eps=weights.eps,
        gate_up=PackedMatrix(weights.gate_up, None, threads),
        down=PackedMatrix(weights.down, None, threads),
    )
    return block(x_NC.clone(), threads)
