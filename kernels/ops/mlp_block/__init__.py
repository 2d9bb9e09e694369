"""The MLP half of a pre-norm decoder layer over quantised weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from kernels.ops.mlp_block.weights import MlpWeights


def mlp_block(x_NC: torch.Tensor, weights: MlpWeights, *, impl: str = "auto") -> torch.Tensor:
    """x + down(silu(gate(norm(x))) · up(norm(x))), norm(x) = x / rms(x) · weight.

    Shapes: x (N, C) float32, and so the result.
    Numerics: as `kernels.ops.packed_gemm` for each map, float32 between them; a row's result
    depends on no other row and no thread count.
    Cost: the packed matrices once, x twice; nothing else leaves the caches.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Touvron et al. 2023, arXiv:2302.13971, section 2.2; Shazeer 2020, arXiv:2002.05202.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.mlp_block.spec import SPEC
    from kernels.runtime import implementation

    width, inner = weights.down.quants_NK.shape
    check_shape(x_NC, "N C", {"C": width}, name="x")
    sizes = {"N": x_NC.shape[0], "C": width, "I": inner}
    dtype, options = DTYPE_NAMES[x_NC.dtype], {"weights": "packed"}
    run = implementation(SPEC, x_NC.device, dtype, sizes=sizes, options=options, asked=impl)
    return run(x_NC, weights)
