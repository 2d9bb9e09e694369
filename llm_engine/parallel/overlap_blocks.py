"""A model's blocks in the order in which it calls them, and their updates on one rank."""

# N tokens, C channels.

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.collectives.protocol import Communicator
from llm_engine.layers.blocks import AttentionBlock, DecoderLayer, MlpBlock
from llm_engine.layers.embedding import Embedding
from llm_engine.layers.experts import MoeBlock
from llm_engine.layers.linear import Linear
from llm_engine.layers.step import Step
from llm_engine.parallel.rank_ops import RankOps


class BlockRecorder:
    """Model ops that embed and otherwise only note what a model calls.

    So a model's layers become data without its file knowing. See
    `llm_engine.layers.model_ops.ModelOps`.
    """

    def __init__(self, ops: RankOps) -> None:
        """`ops` embed."""
        self._ops = ops
        self.attention: list[AttentionBlock] = []
        self.second: list[MlpBlock | MoeBlock] = []

    def embed(self, embedding: Embedding, token_ids_N: torch.Tensor) -> torch.Tensor:
        """The first hidden states, exchanged. Shapes: ids (N,); result (N, C)."""
        return self._ops.embed(embedding, token_ids_N)

    def stack(self, layers: Sequence[DecoderLayer], x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """Note all layers; x as it is."""
        for layer in layers:
            self.attention.append(layer.attention)
            self.second.append(layer.mlp)
        return x_NC

    def attention_block(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step, /
    ) -> torch.Tensor:
        """Note the block; x as it is."""
        self.attention.append(block)
        return x_NC

    def mlp_block(
        self, layer: int, block: MlpBlock, x_NC: torch.Tensor, step: Step, /
    ) -> torch.Tensor:
        """Note the block; x as it is."""
        self.second.append(block)
        return x_NC

    def moe_block(
        self, layer: int, block: MoeBlock, x_NC: torch.Tensor, step: Step, /
    ) -> torch.Tensor:
        """Note the block; x as it is."""
        self.second.append(block)
        return x_NC

    def logits(
        self, x_NC: torch.Tensor, norm_C: torch.Tensor, head: Linear, eps: float
    ) -> torch.Tensor:
        """The logits, exchanged."""
        return self._ops.logits(x_NC, norm_C, head, eps)


class RankUpdates:
    """See `llm_engine.parallel.overlap.LayerUpdates`: one rank's terms of recorded blocks."""

    def __init__(self, ops: RankOps, blocks: BlockRecorder) -> None:
        """A model calls one block of each kind a layer, in turn."""
        assert len(blocks.attention) == len(blocks.second)
        self._ops, self._blocks = ops, blocks

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self._blocks.attention)

    @property
    def sums_second(self) -> list[Communicator]:
        """The ranks whose terms of each layer's second block are summed."""
        ops = self._ops
        is_moe = [isinstance(block, MoeBlock) for block in self._blocks.second]
        return [ops.expert_ranks if moe else ops.mesh.tp for moe in is_moe]

    @property
    def kinds(self) -> dict[int, int]:
        """A layer of each kind, dense or of experts, and how many there are of it."""
        kinds = [type(block) for block in self._blocks.second]
        return {kinds.index(kind): kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def heads(
        self, layer: int, x_NC: torch.Tensor, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of a layer, not turned."""
        return self._ops.heads(layer, self._blocks.attention[layer], x_NC, step)

    def output(self, layer: int, o_NHD: torch.Tensor, step: Step) -> torch.Tensor:
        """What attention adds. Shapes: o (N, H, D); result (N, C)."""
        return self._ops.output(layer, self._blocks.attention[layer], o_NHD, step)

    def attention_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """See the protocol."""
        return self._ops.attention_update(layer, self._blocks.attention[layer], x_NC, step)

    def mlp_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """See the protocol."""
        block = self._blocks.second[layer]
        if isinstance(block, MoeBlock):
            return self._ops.moe_update(layer, block, x_NC, step)
        return self._ops.mlp_update(layer, block, x_NC, step)
