"""A Wan transformer over some of a clip's tokens: stock modules, our self-attention.

Source: diffusers 0.42.1, models/transformers/transformer_wan.py (forward, WanAttnProcessor).
"""

# B batch (1), S tokens of the clip, T of them on this rank, C channels, H heads, D head dim,
# F latent frames.

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from video_engine.models.pipelines import Stock
from video_engine.parallel.head_exchange import HeadExchange
from video_engine.parallel.rows import OwnRows


@dataclass(frozen=True, slots=True)
class _Turn:
    """What stock blocks hand through to attention: own tokens' rotation, all ranks' counts.

    Shapes: cos and sin (1, T, 1, D).
    """

    cos: torch.Tensor
    sin: torch.Tensor
    token_counts: tuple[int, ...]

    def __call__(self, x_BTHD: torch.Tensor) -> torch.Tensor:
        x1, x2 = x_BTHD.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.cos[..., 0::2], self.sin[..., 1::2]
        turned = torch.empty_like(x_BTHD)
        turned[..., 0::2] = x1 * cos - x2 * sin
        turned[..., 1::2] = x1 * sin + x2 * cos
        return turned


class WanSelfAttention:
    """A diffusers attention processor: norms over all heads, then attention across ranks."""

    def __init__(self, exchange: HeadExchange) -> None:
        self._exchange = exchange

    def __call__(
        self,
        attn: Stock,
        hidden_states: torch.Tensor,
        encoder_hidden_states: None,
        attention_mask: None,
        rotary_emb: _Turn,
    ) -> torch.Tensor:
        """See diffusers; a block calls it for self-attention alone.

        Shapes: hidden_states and the result (1, T, C).
        """
        heads = (attn.heads, attn.inner_dim // attn.heads)
        q_BTHD = rotary_emb(attn.norm_q(attn.to_q(hidden_states)).unflatten(2, heads))
        k_BTHD = rotary_emb(attn.norm_k(attn.to_k(hidden_states)).unflatten(2, heads))
        v_BTHD = attn.to_v(hidden_states).unflatten(2, heads)
        o_THD = self._exchange(q_BTHD[0], k_BTHD[0], v_BTHD[0], rotary_emb.token_counts)
        return attn.to_out[1](attn.to_out[0](o_THD.flatten(1)[None]))


class WanRows:
    """See `video_engine.parallel.rows.RowModel`."""

    def __init__(
        self, transformer: Stock, exchange: HeadExchange | None, num_ranks: int, rank: int
    ) -> None:
        """Takes over the transformer's self-attention; without an exchange it stays stock."""
        self._model, self._exchange = transformer, exchange
        self._num_ranks, self._rank = num_ranks, rank
        if exchange is not None:
            for block in transformer.blocks:
                block.attn1.set_processor(WanSelfAttention(exchange))

    @property
    def width(self) -> int:
        """See the protocol."""
        return self._model.proj_out.out_features

    @property
    def dtype(self) -> torch.dtype:
        """See the protocol."""
        return self._model.dtype

    def num_rows(self, inputs: Mapping[str, torch.Tensor]) -> int:
        """See the protocol."""
        return math.prod(self._grid(inputs["hidden_states"]))

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """See the protocol."""
        model, x_BCFHW = self._model, inputs["hidden_states"]
        own = OwnRows.of(self.num_rows(inputs), self._num_ranks, self._rank)
        cos, sin = (table[:, own.slice] for table in model.rope(x_BCFHW))
        rotary = _Turn(cos, sin, own.counts) if self._exchange else (cos, sin)
        temb, modulation, text_BLC = self._conditions(inputs, own)
        x_BTC = self._patches(x_BCFHW, own)
        for block in model.blocks:
            x_BTC = block(x_BTC, text_BLC, modulation, rotary)
        shift, scale = self._last_modulation(temb)
        x_BTC = (model.norm_out(x_BTC.float()) * (1 + scale) + shift).type_as(x_BTC)
        return model.proj_out(x_BTC)[0]

    def whole(
        self, rows: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """See the protocol."""
        patch = self._model.config.patch_size
        x = rows.reshape(1, *self._grid(inputs["hidden_states"]), *patch, -1)
        x = x.permute(0, 7, 1, 4, 2, 5, 3, 6)
        return (x.flatten(6, 7).flatten(4, 5).flatten(2, 3),)

    def _grid(self, x_BCFHW: torch.Tensor) -> tuple[int, ...]:
        sides = zip(x_BCFHW.shape[2:], self._model.config.patch_size, strict=True)
        return tuple(length // patch for length, patch in sides)

    def _conditions(
        self, inputs: Mapping[str, torch.Tensor], own: OwnRows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Time embedding, its six projections (both by token where times are), text and picture."""
        timestep, num_times = inputs["timestep"], None
        if timestep.ndim == 2:
            # A rank without tokens embeds one time all the same: nothing can be made of none.
            timestep = timestep[:, own.slice] if own.run else timestep[:, :1]
            num_times, timestep = timestep.shape[1], timestep.flatten()
        temb, modulation, text_BLC, picture_BLC = self._model.condition_embedder(
            timestep,
            inputs["encoder_hidden_states"],
            inputs.get("encoder_hidden_states_image"),
            timestep_seq_len=num_times,
        )
        modulation = modulation.unflatten(-1, (6, -1))
        if num_times is not None and not own.run:
            temb, modulation = temb[:, :0], modulation[:, :0]
        if picture_BLC is not None:
            text_BLC = torch.concat([picture_BLC, text_BLC], dim=1)
        return temb, modulation, text_BLC

    def _patches(self, x_BCFHW: torch.Tensor, own: OwnRows) -> torch.Tensor:
        """Embedded patches of the own tokens, from the frames that hold them."""
        frames, height, width = self._grid(x_BCFHW)
        first = min(own.run.start // (height * width), frames - 1)
        last = max(-(-own.run.stop // (height * width)), first + 1)
        deep = self._model.config.patch_size[0]
        patches = self._model.patch_embedding(x_BCFHW[:, :, first * deep : last * deep])
        before = first * height * width
        own_slice = slice(own.run.start - before, own.run.stop - before)
        return patches.flatten(2).transpose(1, 2)[:, own_slice].contiguous()

    def _last_modulation(self, temb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table = self._model.scale_shift_table.to(temb.device)
        if temb.ndim == 3:
            shift, scale = (table.unsqueeze(0) + temb.unsqueeze(2)).chunk(2, dim=2)
            return shift.squeeze(2), scale.squeeze(2)
        shift, scale = (table + temb.unsqueeze(1)).chunk(2, dim=1)
        return shift, scale
