"""The attention block through the native kernels: one call a layer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.native.library import AttentionBlock, Heads, Norm, Pool, library, pool
from kernels.ops.attention_block.step import PagedStep, TurnTable
from kernels.ops.attention_block.weights import AttentionWeights
from kernels.ops.packed_gemm.quantised import PackedMatrix

# N rows, C channels, H query heads, K key/value heads, D head dim, P pages, Z page size,
# X = H + 2K.

CACHE_DTYPE = torch.int16
SCALE_WORDS = 2  # a float32 a token, beside the words of a head's keys or values
_PAGE_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Heads of a layer, and the page size of its cache. `eps` is that of all norms."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    eps: float

    @property
    def page_shape(self) -> tuple[int, int, int]:
        """A page of a layer: (K, keys or values, (D + 2) Z) words of 16 bits; see attention.h."""
        return (self.num_kv_heads, 2, (self.head_dim + SCALE_WORDS) * self.page_size)

    def struct(
        self, q_norm_D: torch.Tensor | None = None, k_norm_D: torch.Tensor | None = None
    ) -> Heads:
        """As the C interface takes it; the norms must outlive it."""
        return Heads(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            page_size=self.page_size,
            eps=self.eps,
            q_norm=None if q_norm_D is None else q_norm_D.data_ptr(),
            k_norm=None if k_norm_D is None else k_norm_D.data_ptr(),
        )


class NativeAttentionBlock:
    """The weights of a block, ready to be called."""

    def __init__(
        self,
        shape: HeadShape,
        *,
        norm_C: torch.Tensor,
        qkv: PackedMatrix,
        out: PackedMatrix,
        q_norm_D: torch.Tensor | None = None,
        k_norm_D: torch.Tensor | None = None,
    ) -> None:
        """Keep the weights; norms are taken in float32."""
        norms = [
            None if x is None else x.float().contiguous() for x in (norm_C, q_norm_D, k_norm_D)
        ]
        self._kept = (norms, qkv, out)
        assert norms[0] is not None
        self._block = AttentionBlock(
            norm=Norm(norms[0].data_ptr(), shape.eps),
            qkv=ctypes.pointer(qkv.weight),
            out=ctypes.pointer(out.weight),
            heads=shape.struct(norms[1], norms[2]),
        )
        self.address = ctypes.addressof(self._block)
        self._call = library().attention_block

    def __call__(
        self, x_NC: torch.Tensor, cache: torch.Tensor, step: PagedStep, threads: Pool
    ) -> torch.Tensor:
        """Add the block's output to x, in place. Shapes: x (N, C); cache as `page_shape`."""
        self._call(threads.handle, self.address, step.address, cache.data_ptr(), x_NC.data_ptr())
        return x_NC


def attend(
    fused_NXD: torch.Tensor, cache: torch.Tensor, heads: Heads, step: PagedStep, threads: Pool
) -> torch.Tensor:
    """Turn and store what a fused product gave, then attend. Changes it; returns (N, H, D)."""
    num_rows, _, head_dim = fused_NXD.shape
    out_NHD = torch.empty(num_rows, heads.num_heads, head_dim)
    library().attend(
        threads.handle,
        ctypes.addressof(heads),
        step.address,
        cache.data_ptr(),
        fused_NXD.data_ptr(),
        out_NHD.data_ptr(),
    )
    return out_NHD


@dataclass(frozen=True, slots=True)
class _Sequence:
    start: int
    num_tokens: int
    pages: Sequence[int]


def attention_block(
    x_NC: torch.Tensor,
    weights: AttentionWeights,
    cosines_PR: torch.Tensor,
    sines_PR: torch.Tensor,
    *,
    lengths: Sequence[int],
    quant: str = "groups",
) -> torch.Tensor:
    """See `kernels.ops.attention_block.attention_block`; packs first, which a model does once.

    Pages of the sequences are interleaved.
    """
    assert quant == "groups"
    threads = pool(torch.get_num_threads())
    shape = HeadShape(
        num_heads=weights.num_heads,
        num_kv_heads=weights.num_kv_heads,
        head_dim=weights.head_dim,
        page_size=_PAGE_SIZE,
        eps=weights.eps,
    )
    block = NativeAttentionBlock(
        shape,
        norm_C=weights.norm_C,
        qkv=PackedMatrix(weights.qkv, weights.qkv_bias_X, threads),
        out=PackedMatrix(weights.out, None, threads),
        q_norm_D=weights.q_norm_D,
        k_norm_D=weights.k_norm_D,
    )
    spans = [
        _Sequence(0, length, [page * len(lengths) + i for page in range(-(-length // _PAGE_SIZE))])
        for i, length in enumerate(lengths)
        if length
    ]
    if not spans:
        return x_NC.clone()
    num_pages = 1 + max(page for span in spans for page in span.pages)
    cache = torch.zeros(num_pages, *shape.page_shape, dtype=CACHE_DTYPE)
    table = TurnTable(cosines_PR.float().contiguous(), sines_PR.float().contiguous())
    return block(x_NC.clone(), cache, PagedStep(spans, table), threads)
