"""The blocks through the native kernels, over a cache of their own layout."""

# N tokens of all sequences in a step, C channels, H query heads, K key/value heads, D head dim,
# L layers, P pages in all, Z page size.

from collections.abc import Sequence

import torch

from kernels.native.library import pool
from kernels.ops.attention_block.native import (
    CACHE_DTYPE,
    SCALE_WORDS,
    HeadShape,
    NativeAttentionBlock,
    attend,
)
from kernels.ops.attention_block.step import PagedStep, TurnTable
from kernels.ops.mlp_block.native import NativeMlpBlock
from kernels.ops.mlp_block.stack import NativeStack
from kernels.ops.packed_gemm.native import multiply
from llm_engine.layers.blocks import AttentionBlock, DecoderLayer, MlpBlock, TorchBlocks
from llm_engine.layers.linear import Linear
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.layers.rotary import Rotary
from llm_engine.layers.step import Step
from llm_engine.memory.lazy_tensor import LazyTensor
from llm_engine.model_config import ModelConfig


class NativeCache:
    """Keys and values of all layers, as integers with a scale a token and head: 14 bits each.

    Shapes: a layer is (P, K, 2, (D + 2) Z), in words of 16 bits.
    """

    def __init__(self, config: ModelConfig, num_pages: int, page_size: int) -> None:
        """Reserve all pages, zeroed: masked positions must hold finite numbers."""
        self.shape = head_shape(config, page_size)
        page = (num_pages, *self.shape.page_shape)
        self.reservations = [LazyTensor(page, CACHE_DTYPE) for _ in range(config.num_layers)]
        self.layers = [reserved.tensor for reserved in self.reservations]
        self.heads = self.shape.struct()

    @staticmethod
    def bytes_per_token(config: ModelConfig) -> int:
        """Bytes that one token takes in all layers."""
        return config.num_layers * NativeCache.layer_bytes_per_token(config)

    @staticmethod
    def layer_bytes_per_token(config: ModelConfig) -> int:
        """Bytes that one token takes in a layer."""
        words = config.head_dim + SCALE_WORDS
        return 2 * config.num_kv_heads * words * CACHE_DTYPE.itemsize


def head_shape(config: ModelConfig, page_size: int) -> HeadShape:
    """The heads of a model's layers over pages of this size."""
    return HeadShape(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        page_size=page_size,
        eps=config.rms_eps,
    )


class NativeAttend:
    """One step's rows over a native cache; called by itself where torch composes the block."""

    def __init__(self, cache: NativeCache, spans: Sequence[AttentionSpan], rotary: Rotary) -> None:
        """Prepare what all layers share."""
        self.cache = cache
        end = max(span.start + span.num_tokens for span in spans)
        self.paged = PagedStep(spans, TurnTable(*rotary.table(end)))

    def __call__(
        self,
        layer: int,
        q_NHD: torch.Tensor,
        k_NKD: torch.Tensor,
        v_NKD: torch.Tensor,
    ) -> torch.Tensor:
        """See `llm_engine.layers.step.Attend`."""
        fused_NXD = torch.cat((q_NHD, k_NKD, v_NKD), dim=1)
        threads = pool(torch.get_num_threads())
        return attend(fused_NXD, self.cache.layers[layer], self.cache.heads, self.paged, threads)


class NativeBlocks:
    """One native call a block; with adapters in the step, the composition over native parts."""

    def __init__(self, config: ModelConfig, page_size: int, composed: TorchBlocks) -> None:
        """Blocks are made ready when first met."""
        self._shape = head_shape(config, page_size)
        self._composed = composed
        self._attention: dict[int, tuple[AttentionBlock, NativeAttentionBlock]] = {}
        self._mlp: dict[int, tuple[MlpBlock, NativeMlpBlock]] = {}
        self._stack: tuple[Sequence[DecoderLayer], NativeCache, NativeStack | None] | None = None

    def attention_block(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """As `TorchBlocks.attention_block`, in place."""
        is_packed = block.qkv.packed is not None and block.out.packed is not None
        is_plain = step.adapters is None and is_packed
        if not is_plain or not isinstance(step.attend, NativeAttend):
            return self._composed.attention_block(layer, block, x_NC, step)
        ready = self._ready_attention(layer, block)
        threads = pool(torch.get_num_threads())
        return ready(x_NC, step.attend.cache.layers[layer], step.attend.paged, threads)

    def mlp_block(
        self, layer: int, block: MlpBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """As `TorchBlocks.mlp_block`, in place."""
        is_packed = block.gate_up.packed is not None and block.down.packed is not None
        if step.adapters is not None or not is_packed:
            return self._composed.mlp_block(layer, block, x_NC, step)
        return self._ready_mlp(layer, block)(x_NC, pool(torch.get_num_threads()))

    def stack(self, layers: Sequence[DecoderLayer], x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """All layers of a model in one call where nothing comes between them; x in place."""
        if step.adapters is None and isinstance(step.attend, NativeAttend):
            ready = self._ready_stack(layers, step.attend.cache)
            if ready is not None:
                return ready(x_NC, step.attend.paged, pool(torch.get_num_threads()))
        for index, layer in enumerate(layers):
            x_NC = self.attention_block(index, layer.attention, x_NC, step)
            x_NC = self.mlp_block(index, layer.mlp, x_NC, step)
        return x_NC

    def _ready_attention(self, layer: int, block: AttentionBlock) -> NativeAttentionBlock:
        known, ready = self._attention.get(layer, (None, None))
        if ready is None or known is not block:
            ready = NativeAttentionBlock(
                self._shape,
                norm_C=block.norm,
                qkv=block.qkv.packed_matrix,
                out=block.out.packed_matrix,
                q_norm_D=block.q_norm,
                k_norm_D=block.k_norm,
            )
            self._attention[layer] = (block, ready)
        return ready

    def _ready_mlp(self, layer: int, block: MlpBlock) -> NativeMlpBlock:
        known, ready = self._mlp.get(layer, (None, None))
        if ready is None or known is not block:
            ready = NativeMlpBlock(
                norm_C=block.norm,
                eps=self._shape.eps,
                gate_up=block.gate_up.packed_matrix,
                down=block.down.packed_matrix,
            )
            self._mlp[layer] = (block, ready)
        return ready

    def _ready_stack(
        self, layers: Sequence[DecoderLayer], cache: NativeCache
    ) -> NativeStack | None:
        """None where a layer's weights are not all packed."""
        if self._stack is not None and self._stack[0] is layers and self._stack[1] is cache:
            return self._stack[2]
        ready = None
        if all(_is_packed(layer) for layer in layers):
            ready = NativeStack(
                [self._ready_attention(i, layer.attention) for i, layer in enumerate(layers)],
                [self._ready_mlp(i, layer.mlp) for i, layer in enumerate(layers)],
                cache.layers,
            )
        self._stack = (layers, cache, ready)
        return ready


def _is_packed(layer: DecoderLayer) -> bool:
    linears = (layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down)
    return all(linear.packed is not None for linear in linears)


def normed_product(
    x_NC: torch.Tensor, norm_C: torch.Tensor, linear: Linear, eps: float
) -> torch.Tensor:
    """A packed map of x / rms(x) · norm in one call. Shapes: x (N, C); result (N, out)."""
    threads = pool(torch.get_num_threads())
    return multiply(x_NC, linear.packed_matrix, threads, norm_K=norm_C, eps=eps)
