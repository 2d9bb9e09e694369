"""The embedding of tokens, which a tied model uses once more as its head."""

# N tokens, V vocabulary, C channels.

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from llm_engine.layers.linear import Linear, stack_quantised
from llm_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of a matrix (V, C) by token id: `weight`, or the packed one of `head`."""

    weight: torch.Tensor | None
    head: Linear | None = None
    keeps_rows: bool = False

    @classmethod
    def load(cls, checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> Self:
        """Take `<name>.weight`, quantised where the checkpoint gives it so.

        Raises: UnsupportedModel if it is missing.
        """
        blocks = checkpoint.take_packed(f"{name}.weight")
        if blocks is not None:
            return cls(None, Linear.pack(stack_quantised([blocks])))
        weight = checkpoint.take(f"{name}.weight").to(dtype)
        return cls(weight, keeps_rows=checkpoint.keeps_rows)

    def __call__(self, token_ids_N: torch.Tensor) -> torch.Tensor:
        """Shapes: ids (N,); result (N, C)."""
        if self.head is not None:
            return self.head.packed_matrix.rows(token_ids_N)
        assert self.weight is not None
        return F.embedding(token_ids_N, self.weight)

    def as_head(self) -> Linear:
        """The map from hidden states to logits that shares these weights."""
        if self.head is not None:
            return self.head
        assert self.weight is not None
        return Linear.build(self.weight, keeps_rows=self.keeps_rows)

    @property
    def num_parameters(self) -> int:
        """Parameters of the matrix."""
        if self.head is not None:
            return self.head.num_parameters
        assert self.weight is not None
        return self.weight.numel()
