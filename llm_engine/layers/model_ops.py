"""What a model calls: the seam behind which one device computes, or several ranks do."""

# N tokens of all sequences in a step, C channels, V vocabulary.

from collections.abc import Sequence
from typing import Protocol

import torch

from llm_engine.layers.blocks import AttentionBlock, DecoderLayer, MlpBlock
from llm_engine.layers.embedding import Embedding
from llm_engine.layers.experts import MoeBlock
from llm_engine.layers.linear import Linear
from llm_engine.layers.step import Step


class ModelOps(Protocol):
    """The parts of a decoder-only model; x may be changed in place.

    N is how many rows of the step are computed here: where ranks share them out, fewer than the
    step has.
    """

    def embed(self, embedding: Embedding, token_ids_N: torch.Tensor) -> torch.Tensor:
        """The first hidden states. Shapes: ids (N,); result (N, C)."""
        ...

    def stack(self, layers: Sequence[DecoderLayer], x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """All layers of a dense model. Shapes: x and result (N, C)."""
        ...

    def attention_block(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step, /
    ) -> torch.Tensor:
        """Store the step's keys and values on the way. Shapes: x and result (N, C)."""
        ...

    def mlp_block(
        self, layer: int, block: MlpBlock, x_NC: torch.Tensor, step: Step, /
    ) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        ...

    def moe_block(
        self, layer: int, block: MoeBlock, x_NC: torch.Tensor, step: Step, /
    ) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        ...

    def logits(
        self, x_NC: torch.Tensor, norm_C: torch.Tensor, head: Linear, eps: float
    ) -> torch.Tensor:
        """head(x / rms(x) · norm) in float32. Shapes: x (N, C); norm (C,); result (N, V)."""
        ...
