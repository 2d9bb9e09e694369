"""MiniMax-H3's transformer over some of the packed rows: stock modules, our self-attention.

Source: diffusers 0.42.1, models/transformers/transformer_minimax_h3.py.
"""

# B batch (1), S rows of the sequence, T of them on this rank, C channels, H heads, D head dim.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from video_engine.models.pipelines import Stock
from video_engine.parallel.head_exchange import HeadExchange
from video_engine.parallel.rows import OwnRows

_MODALITIES = 3  # video, text, audio: a table row of the modulation for each


@dataclass(frozen=True, slots=True)
class _Turn:
    """What stock blocks hand through to attention.

    Shapes: cos and sin (T, R) of R rotated channels.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    row_counts: tuple[int, ...]

    def __call__(self, x_BTHD: torch.Tensor) -> torch.Tensor:
        rotated = self.cos.shape[-1]
        x, rest = x_BTHD[..., :rotated], x_BTHD[..., rotated:]
        cos, sin = (table.to(x.dtype)[None, :, None, :] for table in (self.cos, self.sin))
        x1, x2 = x.chunk(2, dim=-1)
        x = x * cos + torch.cat((-x2, x1), dim=-1) * sin
        return torch.cat((x, rest), dim=-1)


class H3SelfAttention:
    """A diffusers attention processor: norms by head, then attention across ranks."""

    def __init__(self, exchange: HeadExchange) -> None:
        self._exchange = exchange

    def __call__(
        self,
        attn: Stock,
        hidden_states: torch.Tensor,
        rotary_emb: _Turn,
        attention_mask: None,
    ) -> torch.Tensor:
        """See diffusers. Shapes: hidden_states and the result (1, T, C)."""
        heads = (attn.heads, attn.head_dim)
        q_BTHD = rotary_emb(attn.norm_q(attn.to_q(hidden_states).unflatten(-1, heads)))
        k_BTHD = rotary_emb(attn.norm_k(attn.to_k(hidden_states).unflatten(-1, heads)))
        v_BTHD = attn.to_v(hidden_states).unflatten(-1, heads)
        o_THD = self._exchange(q_BTHD[0], k_BTHD[0], v_BTHD[0], rotary_emb.row_counts)
        return attn.to_out[1](attn.to_out[0](o_THD.flatten(1)[None]))


class H3Rows:
    """See `video_engine.parallel.rows.RowModel`; rows hold video, sound and text alike.

    The text is refined by every rank, as a whole: it is short, and its rows read each other.
    """

    def __init__(
        self, transformer: Stock, exchange: HeadExchange | None, num_ranks: int, rank: int
    ) -> None:
        """Takes over the self-attention of the blocks, not of the text refiner's."""
        self._model, self._exchange = transformer, exchange
        self._num_ranks, self._rank = num_ranks, rank
        if exchange is not None:
            for block in transformer.transformer_blocks:
                block.attn.set_processor(H3SelfAttention(exchange))

    @property
    def width(self) -> int:
        """See the protocol: the video's values, then the sound's."""
        return self._model.proj_out.out_features + self._model.audio_proj_out.out_features

    @property
    def dtype(self) -> torch.dtype:
        """See the protocol."""
        return self._model.proj_out.weight.dtype

    def num_rows(self, inputs: Mapping[str, torch.Tensor]) -> int:
        """See the protocol."""
        return inputs["position_ids"].shape[0]

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """See the protocol."""
        model = self._model
        own = OwnRows.of(self.num_rows(inputs), self._num_ranks, self._rank)
        cos, sin = model.rope(inputs["position_ids"][own.slice])
        rotary = _Turn(cos, sin, own.counts) if self._exchange else (cos, sin)
        times = inputs["timestep_indices"][own.slice]
        table_rows = times * _MODALITIES + inputs["token_tags"][own.slice]
        temb = model.time_proj(inputs["timestep"])
        temb = model.time_embedder(temb.to(_dtype(model.time_embedder)))
        x_BTC = self._embedded(inputs, own)
        for block in model.transformer_blocks:
            x_BTC = block(x_BTC, temb, table_rows, rotary)
        x_BTC = model.norm_out(x_BTC, temb, times).to(self.dtype)
        return torch.cat((model.proj_out(x_BTC), model.audio_proj_out(x_BTC)), dim=-1)[0]

    def whole(
        self, rows: torch.Tensor, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """See the protocol."""
        video, sound = rows[None].split(
            (self._model.proj_out.out_features, self._model.audio_proj_out.out_features), dim=-1
        )
        return (
            video.index_select(1, inputs["video_indices"]),
            sound.index_select(1, inputs["audio_indices"]),
        )

    def _embedded(self, inputs: Mapping[str, torch.Tensor], own: OwnRows) -> torch.Tensor:
        """The own rows of the packed sequence, each modality through its own projection."""
        model = self._model
        text = inputs["encoder_hidden_states"].to(_dtype(model.context_embedder))
        text_BLC = model.token_refiner(model.context_embedder(text))
        x_BTC = text_BLC.new_zeros(1, len(own.run), text_BLC.shape[-1])
        rows_BLC, places = _own(text_BLC, inputs["text_indices"], own)
        x_BTC = x_BTC.index_copy(1, places, rows_BLC)
        for project, values, name in (
            (model.proj_in, "hidden_states", "video_indices"),
            (model.audio_proj_in, "audio_hidden_states", "audio_indices"),
        ):
            rows_BLC, places = _own(inputs[values], inputs[name], own)
            rows_BLC = project(rows_BLC.to(_dtype(project)))
            x_BTC = x_BTC.index_copy(1, places, rows_BLC.to(x_BTC.dtype))
        return x_BTC


def _own(
    values_BLC: torch.Tensor, places_L: torch.Tensor, own: OwnRows
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the values whose places are a rank's own, and where they are among its rows."""
    # How many they are is read back from a device: once for each modality, before the blocks.
    is_own = (places_L >= own.run.start) & (places_L < own.run.stop)
    return values_BLC[:, is_own], places_L[is_own] - own.run.start


def _dtype(module: Stock) -> torch.dtype:
    return next(module.parameters()).dtype
