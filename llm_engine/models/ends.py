"""What lies around a decoder's layers: embedding, last norm, head, and the rotary tables."""

# S sampled rows, C channels, V vocabulary.

from dataclasses import dataclass
from typing import Self

import torch

from llm_engine.layers.embedding import Embedding
from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.linear import Linear, load_fused_linear
from llm_engine.layers.model_ops import ModelOps
from llm_engine.layers.rotary import Rotary
from llm_engine.model_config import ModelConfig
from llm_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Ends:
    """Shapes: final_norm (C,); head C -> V, the embedding's own matrix where it is tied."""

    embedding: Embedding
    final_norm_C: torch.Tensor
    head: Linear
    rotary: Rotary
    is_tied: bool
    rms_eps: float

    @classmethod
    def load(
        cls,
        config: ModelConfig,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        forms: KeptForms = PLAIN,
    ) -> Self:
        """Take them from the checkpoint, each once."""
        embedding = Embedding.load(checkpoint, "model.embed_tokens", dtype)
        if config.is_tied:
            head = embedding.as_head()
        else:
            head = load_fused_linear(checkpoint, ["lm_head"], dtype, forms)
        factors = None
        if checkpoint.has("rope_freqs.weight"):
            factors = checkpoint.take("rope_freqs.weight")
        final_norm_C = checkpoint.take("model.norm.weight").to(dtype)
        return cls(
            embedding=embedding,
            final_norm_C=final_norm_C,
            head=head,
            rotary=Rotary.build(
                config, dtype, frequency_divisors=factors, place=final_norm_C.device
            ),
            is_tied=config.is_tied,
            rms_eps=config.rms_eps,
        )

    @property
    def num_parameters(self) -> int:
        """Parameters, a tied embedding counted once."""
        total = self.embedding.num_parameters + self.final_norm_C.numel()
        return total if self.is_tied else total + self.head.num_parameters

    def logits(self, hidden_SC: torch.Tensor, ops: ModelOps) -> torch.Tensor:
        """Shapes: hidden (S, C); result (S, V) in float32."""
        return ops.logits(hidden_SC, self.final_norm_C, self.head, self.rms_eps)
