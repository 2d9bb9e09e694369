"""The attention half of a pre-norm decoder layer over quantised weights and a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from kernels.ops.attention_block.weights import AttentionWeights


def attention_block(
    x_NC: torch.Tensor,
    weights: AttentionWeights,
    cosines_PR: torch.Tensor,
    sines_PR: torch.Tensor,
    *,
    lengths: Sequence[int],
    impl: str = "auto",
) -> torch.Tensor:
    """x + out(attention(turned q, turned k, v)) with (q, k, v) = qkv(norm(x)), causal.

    Sequences lie one after the other in x, each from its position 0 on. An engine that goes on
    with sequences holds their cache: `native.NativeAttentionBlock` with `step.PagedStep`.

    Shapes: x (N, C) float32, and so the result; cosines, sines (P, D/2) float32, P at least the
    longest length; the lengths sum to N.
    Numerics: maps as `kernels.ops.packed_gemm`; keys and values are kept as integers of 14 bits
    with a scale a token and head, queries and the softmax's weights become integers of 13 bits
    (queries 12 for D above 64, 11 above 128). Their products are summed exactly, all else in
    float32: an online softmax over blocks of 64 keys by absolute position, merged every 256. A
    row's result depends on no other row, no chunk, no page and no thread count.
    Cost: the packed matrices and the cached rows once, x twice.
    Raises: ShapeError for other shapes; ImplUnavailable when `impl` cannot serve the case.
    Source: Dao 2023, arXiv:2307.08691; Kwon et al. 2023, arXiv:2309.06180, section 4.
    """
    from kernels.checks import check_shape
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.attention_block.spec import SPEC
    from kernels.runtime import implementation

    num_rows, width = sum(lengths), weights.norm_C.shape[0]
    check_shape(x_NC, "N C", {"N": num_rows, "C": width}, name="x")
    for name, table_PR in (("cosines", cosines_PR), ("sines", sines_PR)):
        check_shape(table_PR, "P R", {"R": weights.head_dim // 2}, name=name)
    heads = {"H": weights.num_heads, "K": weights.num_kv_heads, "D": weights.head_dim}
    sizes = {"N": num_rows, "C": width, **heads, "page": 16}
    dtype, options = DTYPE_NAMES[x_NC.dtype], {"weights": "packed"}
    run = implementation(SPEC, x_NC.device, dtype, sizes=sizes, options=options, asked=impl)
    return run(x_NC, weights, cosines_PR, sines_PR, lengths=lengths)
