"""Rotary embedding, head norm and insertion in plain torch: the oracle."""

from __future__ import annotations

import torch

from kernels.ops.rotary_insert.arguments import HeadNorm, Insertion, Rotation
from kernels.quantise import FP8_LIMIT


def rotary_insert(
    q_THD: torch.Tensor,
    k_TKD: torch.Tensor | None,
    v_TKD: torch.Tensor | None = None,
    cache_PZSKD: torch.Tensor | None = None,
    *,
    rotation: Rotation,
    norm: HeadNorm | None = None,
    insertion: Insertion | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """See `kernels.ops.rotary_insert.rotary_insert`; float32, or float64 when given it."""
    wide = torch.promote_types(q_THD.dtype, torch.float32)
    q_weight, k_weight = (norm.q_weight, norm.k_weight) if norm else (None, None)
    eps = norm.eps if norm else 0.0
    rotated_q = _rotated(_normed(q_THD.to(wide), q_weight, eps), rotation).to(q_THD.dtype)
    if k_TKD is None:
        return rotated_q, None, None
    rotated_k = _rotated(_normed(k_TKD.to(wide), k_weight, eps), rotation)
    if cache_PZSKD is None or insertion is None:
        return rotated_q, rotated_k.to(k_TKD.dtype), None
    rows = [rotated_k] if v_TKD is None else [rotated_k, v_TKD.to(wide)]
    insert_rows(torch.stack(rows, dim=1), cache_PZSKD, insertion)
    return rotated_q, None, cache_PZSKD


def insert_rows(rows_TSKD: torch.Tensor, cache_PZSKD: torch.Tensor, insertion: Insertion) -> None:
    """Write rows to their slots, in place; a slot below 0 takes none."""
    is_kept = insertion.slots >= 0
    rows_TSKD, slots_T = rows_TSKD[is_kept], insertion.slots[is_kept]
    cache_NSKD = cache_PZSKD.flatten(0, 1)
    if cache_PZSKD.dtype == torch.float8_e4m3fn:
        limited = (rows_TSKD / insertion.scale).clamp(-FP8_LIMIT, FP8_LIMIT)
        rows_TSKD = limited.float().to(torch.float8_e4m3fn).view(torch.uint8)
        cache_NSKD = cache_NSKD.view(torch.uint8)
    cache_NSKD[slots_T.long()] = rows_TSKD.to(cache_NSKD.dtype)


def _normed(x_TXD: torch.Tensor, weight_D: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight_D is None:
        return x_TXD
    rms = torch.rsqrt(x_TXD.square().mean(-1, keepdim=True) + eps)
    return x_TXD * rms * weight_D.to(x_TXD.dtype)


def _rotated(x_TXD: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    width, num_tokens = rotation.width, x_TXD.shape[0]
    at_T = slice(num_tokens) if rotation.positions is None else rotation.positions.long()
    cos = rotation.cos[at_T].to(x_TXD.dtype)[:, None]
    sin = rotation.sin[at_T].to(x_TXD.dtype)[:, None]
    sin = -sin if rotation.is_inverse else sin
    first = x_TXD.shape[-1] - width if rotation.turns_last else 0
    turning = x_TXD[..., first : first + width]
    pair_dim, shape = (-2, (2, width // 2)) if rotation.style == "half" else (-1, (width // 2, 2))
    a, b = turning.unflatten(-1, shape).unbind(pair_dim)
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=pair_dim).flatten(-2)
    return torch.cat((x_TXD[..., :first], turned, x_TXD[..., first + width :]), dim=-1)
