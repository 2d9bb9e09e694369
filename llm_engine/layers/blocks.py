"""The two blocks of a pre-norm decoder layer: their weights, and how torch composes them."""

# N tokens of all sequences in a step, C channels, H query heads, K key/value heads, D head dim,
# I inner channels, X = H + 2K.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from llm_engine.layers.linear import Linear
from llm_engine.layers.step import Step
from llm_engine.layers.tiles import OverRows, at_once
from llm_engine.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """x + out(attention(qkv(norm(x)))).

    Shapes: norm (C,); qkv C -> (H + 2K) D, the heads in that order; q_norm and k_norm (D,), the
    RMSNorm of every head before it turns, or None; out H D -> C.
    """

    norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear

    @property
    def num_parameters(self) -> int:
        """Parameters of the block."""
        norms = [x for x in (self.norm, self.q_norm, self.k_norm) if x is not None]
        linears = self.qkv.num_parameters + self.out.num_parameters
        return linears + sum(norm.numel() for norm in norms)


@dataclass(frozen=True, slots=True)
class MlpBlock:
    """x + down(silu(gate(norm(x))) · up(norm(x))).

    Shapes: norm (C,); gate_up C -> 2 I, the gate first; down I -> C.
    """

    norm: torch.Tensor
    gate_up: Linear
    down: Linear

    @property
    def num_parameters(self) -> int:
        """Parameters of the block."""
        return self.norm.numel() + self.gate_up.num_parameters + self.down.num_parameters


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The two blocks of a dense layer, one after the other."""

    attention: AttentionBlock
    mlp: MlpBlock

    @property
    def num_parameters(self) -> int:
        """Parameters of both blocks."""
        return self.attention.num_parameters + self.mlp.num_parameters


class Blocks(Protocol):
    """What computes the two blocks; x may be changed in place."""

    def attention_block(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Store the step's keys and values on the way. Shapes: x and result (N, C)."""
        ...

    def mlp_block(
        self, layer: int, block: MlpBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        ...


class TorchBlocks:
    """The blocks as compositions of the bound ops, one call after the other."""

    def __init__(
        self,
        config: ModelConfig,
        rms_norm: Callable[..., Any],
        swiglu: Callable[..., Any],
        over_rows: OverRows = at_once,
    ) -> None:
        """Keep the model's sizes, the ops that were chosen, and how maps see the rows."""
        self._eps = config.rms_eps
        self._heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self._head_dim = config.head_dim
        self._rms_norm = rms_norm
        self._swiglu = swiglu
        self._over_rows = over_rows

    def attention_block(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Shapes: x and result (N, C). Stores the step's keys and values on the way."""
        return x_NC + self.attention_update(layer, block, x_NC, step)

    def mlp_block(
        self, layer: int, block: MlpBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Shapes: x and result (N, C)."""
        return x_NC + self.mlp_update(layer, block, x_NC, step)

    def attention_update(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """What the block adds to x, owned by the caller. Shapes: x and result (N, C)."""
        o_NHD = step.attend(layer, *self.heads(layer, block, x_NC, step))
        return self.output(layer, block, o_NHD, step)

    def heads(
        self, layer: int, block: AttentionBlock, x_NC: torch.Tensor, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, not turned. Shapes: (N, H, D), (N, K, D), (N, K, D)."""
        h_NC, _, _ = self._rms_norm(x_NC, block.norm, eps=self._eps)
        fused_NX = self._apply(block.qkv, h_NC, step, layer, "qkv")
        # Neighbouring views: the keys follow the queries, so that one rotation covers both.
        heads_NXD = fused_NX.view(-1, sum(self._heads), self._head_dim)
        q_NHD, k_NKD, v_NKD = heads_NXD.split_with_sizes(self._heads, 1)
        if block.q_norm is not None and block.k_norm is not None:
            q_NHD, k_NKD = self._normed_heads(heads_NXD, block.q_norm, block.k_norm)
        return q_NHD, k_NKD, v_NKD

    def output(
        self, layer: int, block: AttentionBlock, o_NHD: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """The map behind attention. Shapes: o (N, H, D); result (N, C)."""
        return self._apply(block.out, o_NHD.flatten(1), step, layer, "out")

    def mlp_update(
        self, layer: int, block: MlpBlock, x_NC: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """What the block adds to x, owned by the caller. Shapes: x and result (N, C)."""
        h_NC, _, _ = self._rms_norm(x_NC, block.norm, eps=self._eps)
        gate_up_N2I = self._apply(block.gate_up, h_NC, step, layer, "gate_up")
        activated_NI, _ = self._swiglu(gate_up_N2I)
        return self._apply(block.down, activated_NI, step, layer, "down")

    def _apply(
        self, linear: Linear, x_NI: torch.Tensor, step: Step, layer: int, part: str
    ) -> torch.Tensor:
        """The map, and the update of the adapters in use."""
        y_NO = self._over_rows(linear, x_NI)
        if step.adapters is None:
            return y_NO
        return step.adapters.update(layer, part, x_NI, y_NO)

    def _normed_heads(
        self, heads_NXD: torch.Tensor, q_norm_D: torch.Tensor, k_norm_D: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys after their norms, neighbours again."""
        num_heads, num_kv_heads, _ = self._heads
        normed_NYD = torch.empty_like(heads_NXD[:, : num_heads + num_kv_heads])
        q_NHD, k_NKD, _ = heads_NXD.split_with_sizes(self._heads, 1)
        for part, heads, weight_D in (
            (normed_NYD[:, :num_heads], q_NHD, q_norm_D),
            (normed_NYD[:, num_heads:], k_NKD, k_norm_D),
        ):
            rows, _, _ = self._rms_norm(heads.reshape(-1, self._head_dim), weight_D, eps=self._eps)
            part.copy_(rows.view(part.shape))
        return normed_NYD[:, :num_heads], normed_NYD[:, num_heads:]
