"""Rotary embedding, head norm and insertion into the paged cache in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.ops.rotary_insert.arguments import HeadNorm, Insertion, Rotation
from kernels.quantise import FP8_LIMIT
from kernels.triton_numerics import cast

# T tokens, H query heads, K key heads, D head dim, R turning dims, S streams of a cache row.

LIMIT = tl.constexpr(FP8_LIMIT)


@triton.jit
def _store(destination, x, mask, scale):
    """Round to the destination's dtype; e4m3 holds x / scale, limited to its range."""
    if destination.dtype.element_ty == tl.float8e4nv:
        x = tl.clamp(x / scale, -LIMIT, LIMIT)
    tl.store(destination, cast(x, destination.dtype.element_ty), mask=mask)


@triton.jit
def _load_pairs(base, pair, R: tl.constexpr, HALF: tl.constexpr, IS_HALF: tl.constexpr, mask):
    """Both members of every pair, float32 (heads, HALF) each. `base` is (heads, 1)."""
    if IS_HALF:
        inside = mask & (pair < R // 2)
        a = tl.load(base + pair, mask=inside, other=0.0)
        b = tl.load(base + R // 2 + pair, mask=inside, other=0.0)
    else:
        column = tl.arange(0, 2 * HALF)[None, :]
        x = tl.load(base + column, mask=mask & (column < R), other=0.0)
        a, b = tl.split(tl.reshape(x, (x.shape[0], HALF, 2)))
    return a.to(tl.float32), b.to(tl.float32)


@triton.jit
def _turn_heads(
    x_ptr,
    x_stride,
    out_ptr,
    weight_ptr,
    cos,
    sin,
    head,
    is_head,
    eps,
    scale,
    D: tl.constexpr,
    R: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    IS_HALF: tl.constexpr,
    TURNS_LAST: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Load a block of heads of one token, normalise, turn, store at stride D."""
    FIRST: tl.constexpr = D - R if TURNS_LAST else 0
    KEPT: tl.constexpr = 0 if TURNS_LAST else R
    pair = tl.arange(0, HALF)[None, :]
    source = x_ptr + head[:, None] * x_stride
    target = out_ptr + head[:, None] * D
    mask = is_head[:, None]
    a, b = _load_pairs(source + FIRST, pair, R, HALF, IS_HALF, mask)
    if REST > 0:
        column = tl.arange(0, REST)[None, :]
        is_kept = mask & (column < D - R)
        kept = tl.load(source + KEPT + column, mask=is_kept, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(a * a + b * b, axis=1)
        if REST > 0:
            squares += tl.sum(kept * kept, axis=1)
        rms = tl.rsqrt(squares / D + eps)[:, None]
        always = tl.full((1, 1), 1, tl.int1)
        weight_a, weight_b = _load_pairs(
            weight_ptr + FIRST + tl.zeros((1, 1), tl.int32), pair, R, HALF, IS_HALF, always
        )
        a *= rms * weight_a
        b *= rms * weight_b
        if REST > 0:
            weight = tl.load(weight_ptr + KEPT + column, mask=column < D - R, other=0.0)
            kept *= rms * weight.to(tl.float32)
    turned_a = a * cos - b * sin
    turned_b = b * cos + a * sin
    if IS_HALF:
        is_pair = mask & (pair < R // 2)
        _store(target + FIRST + pair, turned_a, is_pair, scale)
        _store(target + FIRST + R // 2 + pair, turned_b, is_pair, scale)
    else:
        turned = tl.reshape(tl.join(turned_a, turned_b), (head.shape[0], 2 * HALF))
        column = tl.arange(0, 2 * HALF)[None, :]
        _store(target + FIRST + column, turned, mask & (column < R), scale)
    if REST > 0:
        _store(target + KEPT + tl.arange(0, REST)[None, :], kept, is_kept, scale)


@triton.jit
def rotary_insert_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    q_weight_ptr,
    k_weight_ptr,
    q_out_ptr,
    k_out_ptr,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    table_stride,
    num_heads,
    num_kv,
    eps,
    scale,
    D: tl.constexpr,
    R: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    IS_HALF: tl.constexpr,
    TURNS_LAST: tl.constexpr,
    IS_INVERSE: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    NORM_Q: tl.constexpr,
    NORM_K: tl.constexpr,
    INSERTS: tl.constexpr,
    HAS_V: tl.constexpr,
):
    """One program for HEADS heads of a token: query blocks first, then blocks of keys and values.

    k_out is the cache where INSERTS, else the turned keys.
    """
    token = tl.program_id(0).to(tl.int64)
    num_q_blocks = tl.cdiv(num_heads, HEADS)
    block = tl.program_id(1)
    row = tl.load(positions_ptr + token).to(tl.int64) if HAS_POSITIONS else token
    pair = tl.arange(0, HALF)[None, :]
    table = row * table_stride + pair
    cos = tl.load(cos_ptr + table, mask=pair < R // 2, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + table, mask=pair < R // 2, other=0.0).to(tl.float32)
    if IS_INVERSE:
        sin = -sin
    if block < num_q_blocks:
        head = block * HEADS + tl.arange(0, HEADS)
        _turn_heads(
            q_ptr + token * q_token_stride, q_head_stride, q_out_ptr + token * num_heads * D,
            q_weight_ptr, cos, sin, head, head < num_heads, eps, 1.0,
            D, R, HALF, REST, IS_HALF, TURNS_LAST, NORM_Q,
        )  # fmt: skip
    else:
        head = (block - num_q_blocks) * HEADS + tl.arange(0, HEADS)
        slot = token
        is_head = head < num_kv
        if INSERTS:
            slot = tl.load(slots_ptr + token).to(tl.int64)
            is_head = is_head & (slot >= 0)
        out_ptr = k_out_ptr + slot * (num_kv * D * (2 if HAS_V else 1))
        _turn_heads(
            k_ptr + token * k_token_stride, k_head_stride, out_ptr,
            k_weight_ptr, cos, sin, head, is_head, eps, scale,
            D, R, HALF, REST, IS_HALF, TURNS_LAST, NORM_K,
        )  # fmt: skip
        if HAS_V:
            column = tl.arange(0, WIDTH)[None, :]
            inside = is_head[:, None] & (column < D)
            source = v_ptr + token * v_token_stride + head[:, None] * v_head_stride + column
            v = tl.load(source, mask=inside, other=0.0).to(tl.float32)
            target = out_ptr + num_kv * D + head[:, None] * D + column
            _store(target, v, inside, scale)


def heads_per_block(head_dim: int, num_heads: int) -> int:
    """Heads of a program: about 2048 values, 16 a lane of its four warps."""
    width = triton.next_power_of_2(head_dim)
    return min(max(2048 // width, 1), triton.next_power_of_2(max(num_heads, 1)))


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
    """Launch over tokens and blocks of heads. See `kernels.ops.rotary_insert.rotary_insert`."""
    num_tokens, num_heads, head_dim = q_THD.shape
    norm = norm or HeadNorm()
    inserts = cache_PZSKD is not None and insertion is not None
    num_kv = 0 if k_TKD is None else k_TKD.shape[1]
    q_out = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
    k_out = None
    if k_TKD is not None and not inserts:
        k_out = torch.empty(k_TKD.shape, dtype=k_TKD.dtype, device=k_TKD.device)
    if num_tokens == 0 or head_dim == 0:
        return q_out, k_out, cache_PZSKD
    q, k, v = (_row_major(x, q_THD) for x in (q_THD, k_TKD, v_TKD if inserts else None))
    heads, rest = heads_per_block(head_dim, num_heads), head_dim - rotation.width
    grid = (num_tokens, triton.cdiv(num_heads, heads) + triton.cdiv(num_kv, heads))
    rotary_insert_kernel[grid](
        q,
        k,
        v,
        rotation.cos.contiguous(),
        rotation.sin.contiguous(),
        q if rotation.positions is None else rotation.positions.contiguous(),
        insertion.slots.contiguous() if insertion else q,
        q if norm.q_weight is None else norm.q_weight.contiguous(),
        q if norm.k_weight is None else norm.k_weight.contiguous(),
        q_out,
        cache_PZSKD if inserts else (q_out if k_out is None else k_out),
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        rotation.width // 2,
        num_heads,
        num_kv,
        norm.eps,
        insertion.scale if insertion else 1.0,
        D=head_dim,
        R=rotation.width,
        HALF=triton.next_power_of_2(max(rotation.width // 2, 1)),
        REST=triton.next_power_of_2(rest) if rest else 0,
        WIDTH=triton.next_power_of_2(head_dim),
        HEADS=heads,
        IS_HALF=rotation.style == "half",
        TURNS_LAST=rotation.turns_last,
        IS_INVERSE=rotation.is_inverse,
        HAS_POSITIONS=rotation.positions is not None,
        NORM_Q=norm.q_weight is not None,
        NORM_K=norm.k_weight is not None,
        INSERTS=inserts,
        HAS_V=inserts and v_TKD is not None,
        num_warps=4,
    )
    return q_out, k_out, cache_PZSKD if inserts else None


def _row_major(x_TXD: torch.Tensor | None, otherwise: torch.Tensor) -> torch.Tensor:
    """`x` with the values of a head side by side; a stand-in where it is missing."""
    x_TXD = otherwise if x_TXD is None else x_TXD
    return x_TXD if x_TXD.stride(-1) == 1 else x_TXD.contiguous()
