"""The attention block in plain torch, one sequence after the other: the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from kernels.ops.attention_block.weights import AttentionWeights
from kernels.ops.packed_gemm.reference import packed_gemm, random_matrix
from kernels.spec import Case

# N rows, C channels, H query heads, K key/value heads, D head dim, R = D / 2, T rows of a sequence.


def attention_block(
    x_NC: torch.Tensor,
    weights: AttentionWeights,
    cosines_PR: torch.Tensor,
    sines_PR: torch.Tensor,
    *,
    lengths: Sequence[int],
    quant: str = "none",
) -> torch.Tensor:
    """See `kernels.ops.attention_block.attention_block`.

    `quant` "groups" rounds the maps' inputs, queries, keys and values to integers, as that does.
    """
    norm_C = weights.norm_C.to(x_NC.dtype)
    h_NC = F.rms_norm(x_NC, norm_C.shape, norm_C, weights.eps)
    fused_NX = packed_gemm(h_NC, weights.qkv, weights.qkv_bias_X, quant=quant)
    parts = [
        _attend(fused_TX, weights, cosines_PR, sines_PR, quant=quant)
        for fused_TX in fused_NX.split(list(lengths))
    ]
    return x_NC + packed_gemm(torch.cat(parts), weights.out, quant=quant)


def _attend(
    fused_TX: torch.Tensor,
    weights: AttentionWeights,
    cosines_PR: torch.Tensor,
    sines_PR: torch.Tensor,
    *,
    quant: str,
) -> torch.Tensor:
    """One sequence: (T, H D)."""
    num_rows, counts = fused_TX.shape[0], (weights.num_heads,) + 2 * (weights.num_kv_heads,)
    heads_XTD = fused_TX.view(num_rows, sum(counts), weights.head_dim).transpose(0, 1)
    q_HTD, k_KTD, v_KTD = heads_XTD.split(counts)
    turns = cosines_PR[:num_rows].to(q_HTD.dtype), sines_PR[:num_rows].to(q_HTD.dtype)
    q_HTD = _turned(_normed(q_HTD, weights.q_norm_D, weights.eps), *turns)
    k_KTD = _turned(_normed(k_KTD, weights.k_norm_D, weights.eps), *turns)
    if quant == "groups":
        most_query = 4095 if weights.head_dim <= 64 else 2047 if weights.head_dim <= 128 else 1023
        q_HTD = _rounded(q_HTD, most_query)
        k_KTD, v_KTD = _rounded(k_KTD, 8191), _rounded(v_KTD, 8191)
    o_HTD = F.scaled_dot_product_attention(
        q_HTD[None], k_KTD[None], v_KTD[None], is_causal=True, enable_gqa=True
    )[0]
    return o_HTD.transpose(0, 1).flatten(1)


def _normed(x_HTD: torch.Tensor, weight_D: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight_D is None:
        return x_HTD
    return F.rms_norm(x_HTD, weight_D.shape, weight_D.to(x_HTD.dtype), eps)


def _rounded(x_HTD: torch.Tensor, most: int) -> torch.Tensor:
    """Each head of a token as integers of at most `most` with one scale."""
    scale_HT1 = x_HTD.abs().amax(-1, keepdim=True).clamp_min(1e-30) / most
    return (x_HTD / scale_HT1).round() * scale_HT1


def _turned(x_HTD: torch.Tensor, cos_TR: torch.Tensor, sin_TR: torch.Tensor) -> torch.Tensor:
    first, second = x_HTD.chunk(2, dim=-1)
    return torch.cat((first * cos_TR - second * sin_TR, second * cos_TR + first * sin_TR), dim=-1)


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """N rows shared by up to three sequences of different lengths."""
    sizes, options = case.sizes, case.options
    heads, kv_heads, head_dim = sizes["H"], sizes["K"], sizes["D"]
    num_rows, width = sizes["N"], sizes["C"]
    x_NC = torch.randn(num_rows, width, generator=generator)
    num_out = (heads + 2 * kv_heads) * head_dim
    has_norms = options.get("qk_norm") == "yes"
    norms = 1 + 0.2 * torch.randn(2, head_dim, generator=generator)
    weights = AttentionWeights(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        eps=1e-5,
        norm_C=1 + 0.2 * torch.randn(width, generator=generator),
        qkv=random_matrix(num_out, width, generator, **options),
        out=random_matrix(width, heads * head_dim, generator, **options),
        qkv_bias_X=None if has_norms else torch.randn(num_out, generator=generator),
        q_norm_D=norms[0] if has_norms else None,
        k_norm_D=norms[1] if has_norms else None,
    )
    frequencies_R = 10000.0 ** -(torch.arange(head_dim // 2) / (head_dim // 2))
    angles_PR = torch.outer(torch.arange(num_rows + 1).float(), frequencies_R)
    first, second = min(num_rows, 1), num_rows // 3
    lengths = [first, max(second, first) - first, num_rows - max(second, first)]
    options = {"lengths": lengths, "quant": "groups"}
    return (x_NC, weights, angles_PR.cos(), angles_PR.sin()), options
