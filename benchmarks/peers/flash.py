"""FlashAttention's forms: whole, and over pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.peers.absence import require

# Pages of FlashAttention 2 are multiples of this many rows.
PAGE_MULTIPLE = 256


def full_attention(args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """`flash_attn_func` of one batch."""
    from flash_attn import flash_attn_func

    require(args[0].dtype != torch.float32, "16-bit floats alone")
    q, k, v = (x.unsqueeze(0) for x in args)
    scale = options["scale"]
    return lambda: flash_attn_func(q, k, v, softmax_scale=scale)


def _window(options: dict[str, Any]) -> tuple[int, int]:
    window = options.get("window")
    return (-1, -1) if window is None else (window - 1, 0)


def _pages(cache: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    require(cache.dtype != torch.float32, "16-bit floats alone")
    require(cache.shape[1] % PAGE_MULTIPLE == 0, f"pages of a multiple of {PAGE_MULTIPLE} rows")
    require(options.get("sink_H") is None, "no sinks")
    return cache[:, :, 0].contiguous(), cache[:, :, 1].contiguous()


def paged_prefill(args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """`flash_attn_varlen_func` with a block table."""
    from flash_attn import flash_attn_varlen_func

    q_THD, cache, cu_seqlens_q, lengths_B, table_BM = args
    keys, values = _pages(cache, options)
    cu_seqlens_k = torch.nn.functional.pad(lengths_B.cumsum(0), (1, 0)).int()
    keywords = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": int(cu_seqlens_q.diff().max()),
        "max_seqlen_k": int(lengths_B.max()),
        "softmax_scale": options["scale"],
        "causal": True,
        "window_size": _window(options),
        "block_table": table_BM,
    }
    return lambda: flash_attn_varlen_func(q_THD, keys, values, **keywords)


def paged_decode(args: tuple[Any, ...], options: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """`flash_attn_with_kvcache` of one token a sequence."""
    from flash_attn import flash_attn_with_kvcache

    q_BHD, cache, lengths_B, table_BM = args
    keys, values = _pages(cache, options)
    q_B1HD = q_BHD.unsqueeze(1)
    keywords = {
        "cache_seqlens": lengths_B,
        "block_table": table_BM,
        "softmax_scale": options["scale"],
        "causal": True,
        "window_size": _window(options),
    }
    return lambda: flash_attn_with_kvcache(q_B1HD, keys, values, **keywords)
