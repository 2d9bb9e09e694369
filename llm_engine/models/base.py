"""What the runner asks of a model, and what a model asks of the runner."""

# N tokens of all sequences in a step, S sampled rows, C channels, V vocabulary,
# H query heads, K key/value heads, D head dim.

from typing import Protocol, Self

import torch

from kernels.ops.rotary_insert import Rotation
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.model_config import ModelConfig
from llm_engine.weights.checkpoint import Checkpoint


class Attend(Protocol):
    """Attention over the cache, as seen by a model: it knows nothing of pages or batches."""

    def __call__(
        self,
        layer: int,
        q_NHD: torch.Tensor,
        k_NKD: torch.Tensor,
        v_NKD: torch.Tensor,
        rotation: Rotation,
    ) -> torch.Tensor:
        """Turn queries and keys, store the new keys and values of a layer, then attend.

        Shapes: q (N, H, D); k and v (N, K, D); result (N, H, D).
        """
        ...


class CausalModel(Protocol):
    """A decoder-only language model. It holds weights and no state of any request."""

    config: ModelConfig

    @classmethod
    def load(cls, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> Self:
        """Take every weight from the checkpoint, once."""
        ...

    @property
    def num_parameters(self) -> int:
        """Parameters, a tied embedding counted once."""
        ...

    def hidden(
        self, token_ids_N: torch.Tensor, positions_N: torch.Tensor, attend: Attend, ops: BoundOps
    ) -> torch.Tensor:
        """Final hidden states (N, C), not normalised yet."""
        ...

    def logits(self, hidden_SC: torch.Tensor, ops: BoundOps) -> torch.Tensor:
        """Normalise the chosen rows and project them: float32 logits (S, V)."""
        ...
