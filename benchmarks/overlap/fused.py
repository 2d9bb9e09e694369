"""The fused stages: a rank's layers from the engine's own blocks of weights and bound ops."""

# N tokens, C channels, k choices of a token.

from __future__ import annotations

import torch

from benchmarks.overlap.models import RandomWeights
from benchmarks.overlap.shares import MlpWeights, Share, attention_weights, mlp_weights
from benchmarks.overlap.stages import NUM_ANSWERS
from kernels.ledger import Ledger
from kernels.ops.moe_router.routing import Routing
from llm_engine.device import EngineDevice
from llm_engine.layers.attention import PagedAttention, PagedCache
from llm_engine.layers.blocks import AttentionBlock, MlpBlock, TorchBlocks
from llm_engine.layers.bound_ops import BoundOps, bind_ops
from llm_engine.layers.experts import Expert, MoeBlock, apply_experts
from llm_engine.layers.linear import Linear
from llm_engine.layers.op_choice import OpSizes
from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.layers.rotary import Rotary
from llm_engine.layers.step import Step
from llm_engine.model_config import ModelConfig

PAGE_SIZE = 16


class FusedWeights:
    """A rank's blocks, its ops and its cache: fused qkv and gate-up, packed where torch packs."""

    def __init__(self, weights: RandomWeights, share: Share, num_tokens: int) -> None:
        """Make this rank's weights and reserve a cache for one prompt, or the answers."""
        config = weights.config
        self.config = share.config(config)
        layers = range(config.num_layers)
        self.attention = [_attention(weights, layer, share) for layer in layers]
        second = [mlp_weights(weights, layer, share) for layer in layers]
        self.mlp = [_mlp(w, self.config) for w in second]
        self.first_expert = second[0].first_expert
        dtype = self.attention[0].norm.dtype
        self.num_pages = -(-num_tokens // PAGE_SIZE)
        sizes = OpSizes(
            chunk_tokens=num_tokens, num_seqs=1, context=num_tokens, page_size=PAGE_SIZE
        )
        self.ops: BoundOps = bind_ops(
            self.config,
            dtype,
            sizes,
            asked={},
            ledger=Ledger(),
            device=EngineDevice.of("cpu"),
        )
        self.blocks = TorchBlocks(self.config, self.ops.rms_norm, self.ops.swiglu)
        num_pages = max(self.num_pages, NUM_ANSWERS)
        self.cache = PagedCache(self.config, num_pages, PAGE_SIZE, dtype)
        self.rotary = Rotary.build(config, dtype)

    def step(self, start: int, num_tokens: int) -> Step:
        """Tokens [start, start + num_tokens) of the prompt."""
        span = AttentionSpan(start, num_tokens, range(self.num_pages))
        rotation = self.rotary.rotation(torch.arange(start, start + num_tokens))
        attend = PagedAttention.of_spans(self.cache, [span], self.ops, rotation)
        return Step(torch.empty(num_tokens, dtype=torch.int64), attend)

    def answers(self, first: int, num_answers: int) -> Step:
        """A token of each of some sequences, the last of a page of its own."""
        spans = [
            AttentionSpan(PAGE_SIZE - 1, 1, range(page, page + 1))
            for page in range(first, first + num_answers)
        ]
        rotation = self.rotary.rotation(torch.full((num_answers,), PAGE_SIZE - 1))
        attend = PagedAttention.of_spans(self.cache, spans, self.ops, rotation)
        return Step(torch.empty(num_answers, dtype=torch.int64), attend)

    def mlp_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """What the second block adds, of this rank's channels or experts."""
        block = self.mlp[layer]
        if isinstance(block, MlpBlock):
            return self.blocks.mlp_update(layer, block, x_NC, step)
        h_NC, ids_Nk, weights_Nk = self.ops.route(block, x_NC)
        return apply_experts(
            block.experts, h_NC, ids_Nk, weights_Nk, self.ops.swiglu, first=self.first_expert
        )


class FusedLayers:
    """See `llm_engine.parallel.overlap.LayerUpdates`."""

    def __init__(self, weights: FusedWeights) -> None:
        """Nothing is computed yet."""
        self._weights = weights

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self._weights.attention)

    def attention_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """See the protocol."""
        weights = self._weights
        return weights.blocks.attention_update(layer, weights.attention[layer], x_NC, step)

    def mlp_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """See the protocol."""
        return self._weights.mlp_update(layer, x_NC, step)


def _attention(weights: RandomWeights, layer: int, share: Share) -> AttentionBlock:
    w = attention_weights(weights, layer, share)
    qkv = Linear.build(torch.cat((w.q, w.k, w.v)))
    return AttentionBlock(w.norm, qkv, w.q_norm, w.k_norm, Linear.build(w.out))


def _mlp(w: MlpWeights, config: ModelConfig) -> MlpBlock | MoeBlock:
    gated = tuple(
        Expert(Linear.build(torch.cat((g.gate, g.up))), Linear.build(g.down)) for g in w.gated
    )
    if w.router is None:
        return MlpBlock(w.norm, gated[0].gate_up, gated[0].down)
    moe = config.moe
    assert moe is not None
    routing = Routing(
        score="softmax", k=moe.num_experts_per_token, is_renormalised=moe.is_renormalised
    )
    return MoeBlock(w.norm, Linear.build(w.router), gated, routing)
