"""Rotary embedding on a CPU: queries and keys turn together, in as few torch calls as there are.

Tables in the activations' dtype turn in that dtype (two passes and a roll); wider tables turn in
float32. Interleaved pairs are one complex product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from kernels.ops.rotary_insert.arguments import HeadNorm, Insertion, Rotation
from kernels.ops.rotary_insert.reference import insert_rows

# T tokens, H query heads, K key heads, X = H + K, D head dim, R turning dims.


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
    """See `kernels.ops.rotary_insert.rotary_insert`."""
    heads_TXD = _normed(q_THD, k_TKD, norm) if norm else _side_by_side(q_THD, k_TKD)
    turned_TXD = _turned(heads_TXD, q_THD.dtype, rotation)
    num_heads = q_THD.shape[1]
    if k_TKD is None:
        return turned_TXD, None, None
    rotated_q, rotated_k = turned_TXD[:, :num_heads], turned_TXD[:, num_heads:]
    if cache_PZSKD is None or insertion is None:
        return rotated_q, rotated_k, None
    _insert(rotated_k, v_TKD, cache_PZSKD, insertion)
    return rotated_q, None, cache_PZSKD


def _side_by_side(q_THD: torch.Tensor, k_TKD: torch.Tensor | None) -> torch.Tensor:
    """Query and key heads as one tensor: a view where they are neighbours in a fused product."""
    if k_TKD is None:
        return q_THD
    num_tokens, num_heads, head_dim = q_THD.shape
    strides, offset = q_THD.stride(), q_THD.storage_offset()
    are_neighbours = (
        k_TKD.stride() == strides
        and k_TKD.storage_offset() == offset + num_heads * strides[1]
        and k_TKD.untyped_storage().data_ptr() == q_THD.untyped_storage().data_ptr()
    )
    if not are_neighbours:
        return torch.cat((q_THD, k_TKD), dim=1)
    return q_THD.as_strided((num_tokens, num_heads + k_TKD.shape[1], head_dim), strides, offset)


def _normed(q_THD: torch.Tensor, k_TKD: torch.Tensor | None, norm: HeadNorm) -> torch.Tensor:
    """Normalised heads in float32, so that they are rounded only after they have turned."""
    parts: list[torch.Tensor] = []
    for x_TXD, weight_D in ((q_THD, norm.q_weight), (k_TKD, norm.k_weight)):
        if x_TXD is None:
            continue
        wide = x_TXD.float()
        shape = (x_TXD.shape[-1],)
        parts.append(
            wide if weight_D is None else F.rms_norm(wide, shape, weight_D.float(), norm.eps)
        )
    return torch.cat(parts, dim=1)


def _turned(x_TXD: torch.Tensor, dtype: torch.dtype, rotation: Rotation) -> torch.Tensor:
    spread = rotation.spread or rotation.for_step(x_TXD.shape[0]).spread
    turn = _turn_halves if rotation.style == "half" else _turn_pairs
    head_dim, width = x_TXD.shape[-1], rotation.width
    if width == head_dim:
        return turn(x_TXD, spread).to(dtype)
    first = head_dim - width if rotation.turns_last else 0
    out_TXD = torch.empty(x_TXD.shape, dtype=dtype)
    out_TXD[..., :first] = x_TXD[..., :first]
    out_TXD[..., first + width :] = x_TXD[..., first + width :]
    out_TXD[..., first : first + width] = turn(x_TXD[..., first : first + width], spread)
    return out_TXD


def _turn_halves(x_TXR: torch.Tensor, spread: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """x · cos + rolled(x) · signed sin: the roll brings each half to its partner."""
    cos_T1R, sin_T1R = spread
    if cos_T1R.dtype != x_TXR.dtype:
        x_TXR, cos_T1R, sin_T1R = x_TXR.float(), cos_T1R.float(), sin_T1R.float()
    rolled_TXR = x_TXR.roll(x_TXR.shape[-1] // 2, dims=-1)
    return (x_TXR * cos_T1R).addcmul_(rolled_TXR, sin_T1R)


def _turn_pairs(x_TXR: torch.Tensor, spread: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Neighbours are the real and imaginary part of a number: one product with cos + i sin."""
    pairs = x_TXR.float().unflatten(-1, (-1, 2))
    is_aligned = pairs.storage_offset() % 2 == 0 and all(s % 2 == 0 for s in pairs.stride()[:-1])
    z_TXR = torch.view_as_complex(pairs if is_aligned else pairs.contiguous())
    return torch.view_as_real(z_TXR * spread[0]).flatten(-2)


def _insert(
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor | None,
    cache_PZSKD: torch.Tensor,
    insertion: Insertion,
) -> None:
    """One copy of keys and values into their rows; what skips or quantises goes through torch."""
    rows = k_TKD.unsqueeze(1) if v_TKD is None else torch.stack((k_TKD, v_TKD), dim=1)
    if rows.dtype == cache_PZSKD.dtype:
        try:
            cache_PZSKD.flatten(0, 1).index_copy_(0, insertion.slots.long(), rows)
        except IndexError:  # a slot of -1; asking beforehand would cost every call a pass
            pass
        else:
            return
    insert_rows(rows.float(), cache_PZSKD, insertion)
