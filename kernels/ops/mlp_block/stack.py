"""Whole decoder layers, one after the other, in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from kernels.native.library import Pool, library
from kernels.ops.attention_block.native import NativeAttentionBlock
from kernels.ops.attention_block.step import PagedStep
from kernels.ops.mlp_block.native import NativeMlpBlock

# N rows, C channels, P pages, K key/value heads, D head dim, Z page size.


class NativeStack:
    """Layers of an attention block and an MLP block each, bound to their caches.

    Numerics: those of its blocks called by themselves, bit for bit.
    """

    def __init__(
        self,
        attention: Sequence[NativeAttentionBlock],
        mlp: Sequence[NativeMlpBlock],
        caches: Sequence[torch.Tensor],
    ) -> None:
        """Keep blocks and caches. Shapes: a cache for every layer, as `HeadShape.page_shape`."""
        assert len(attention) == len(mlp) == len(caches)
        self._kept = (tuple(attention), tuple(mlp), tuple(caches))
        self._num_layers = len(attention)
        self._arrays = [
            (ctypes.c_void_p * self._num_layers)(*addresses)
            for addresses in (
                [block.address for block in attention],
                [block.address for block in mlp],
                [cache.data_ptr() for cache in caches],
            )
        ]
        self._addresses = [ctypes.addressof(array) for array in self._arrays]
        self._call = library().decoder_stack

    def __call__(self, x_NC: torch.Tensor, step: PagedStep, threads: Pool) -> torch.Tensor:
        """Pass x through all layers, in place. Shapes: x (N, C)."""
        attention, mlp, caches = self._addresses
        x_at = x_NC.data_ptr()
        self._call(threads.handle, attention, mlp, self._num_layers, step.address, caches, x_at)
        return x_NC
