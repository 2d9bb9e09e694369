"""The generic stage: a rank's layers as plain eager torch, one small op after the other.

As a modelling file of the `transformers` library writes them with its eager attention: separate
projections, repeated key heads, a whole matrix of scores with softmax in float32, experts in a
loop over masks. Numbers are rounded to the model's dtype where that code rounds them.
"""

# N tokens, S tokens of the prompt so far, C channels, H query heads, K key heads, D head dim,
# E experts, k choices of a token.

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from benchmarks.overlap.models import RandomWeights
from benchmarks.overlap.shares import (
    GatedWeights,
    MlpWeights,
    Share,
    attention_weights,
    mlp_weights,
)
from llm_engine.layers.rotary import rotary_frequencies
from llm_engine.layers.step import Step


class EagerLayers:
    """See `llm_engine.parallel.overlap.LayerUpdates`; a whole prompt at once, no cache.

    `fuses_attention` takes torch's `scaled_dot_product_attention` in place of scores.
    """

    def __init__(self, weights: RandomWeights, share: Share) -> None:
        """Make this rank's weights."""
        self.fuses_attention = False
        config = weights.config
        self._config = share.config(config)
        layers = range(config.num_layers)
        self._attention = [attention_weights(weights, layer, share) for layer in layers]
        self._mlp = [mlp_weights(weights, layer, share) for layer in layers]
        self._frequencies = rotary_frequencies(config.rope, config.head_dim)
        self._dtype = self._attention[0].q.dtype

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self._attention)

    def attention_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """See the protocol."""
        w, config = self._attention[layer], self._config
        h_NC = self._norm(x_NC, w.norm)
        q_HND, k_KND, v_KND = (
            F.linear(h_NC, part).view(len(x_NC), -1, config.head_dim).transpose(0, 1)
            for part in (w.q, w.k, w.v)
        )
        if w.q_norm is not None and w.k_norm is not None:
            q_HND, k_KND = self._norm(q_HND, w.q_norm), self._norm(k_KND, w.k_norm)
        cos_ND, sin_ND = self._turns(len(x_NC))
        q_HND = q_HND * cos_ND + _half_turned(q_HND) * sin_ND
        k_KND = k_KND * cos_ND + _half_turned(k_KND) * sin_ND
        o_NHD = self._attend(q_HND, k_KND, v_KND)
        return F.linear(o_NHD.flatten(1), w.out)

    def mlp_update(self, layer: int, x_NC: torch.Tensor, step: Step) -> torch.Tensor:
        """See the protocol."""
        w = self._mlp[layer]
        h_NC = self._norm(x_NC, w.norm)
        if w.router is None:
            return _gated(h_NC, w.gated[0])
        return self._experts(h_NC, w, w.router)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._config.rms_eps)
        return weight * wide.to(x.dtype)

    def _turns(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(torch.arange(num_tokens).float(), self._frequencies)
        angles_ND = torch.cat((angles, angles), -1)
        return angles_ND.cos().to(self._dtype), angles_ND.sin().to(self._dtype)

    def _attend(
        self, q_HND: torch.Tensor, k_KND: torch.Tensor, v_KND: torch.Tensor
    ) -> torch.Tensor:
        times = q_HND.shape[0] // k_KND.shape[0]
        k_HND, v_HND = k_KND.repeat_interleave(times, 0), v_KND.repeat_interleave(times, 0)
        if self.fuses_attention:
            o_1HND = F.scaled_dot_product_attention(
                q_HND[None], k_HND[None], v_HND[None], is_causal=True
            )
            return o_1HND[0].transpose(0, 1)
        scores_HNN = (q_HND @ k_HND.transpose(1, 2)) * self._config.head_dim**-0.5
        num_tokens = q_HND.shape[1]
        mask_NN = torch.full((num_tokens, num_tokens), -torch.inf, dtype=q_HND.dtype).triu_(1)
        scores_HNN = scores_HNN + mask_NN
        probs_HNN = F.softmax(scores_HNN, dim=-1, dtype=torch.float32).to(q_HND.dtype)
        return (probs_HNN @ v_HND).transpose(0, 1)

    def _experts(self, h_NC: torch.Tensor, w: MlpWeights, router_EC: torch.Tensor) -> torch.Tensor:
        moe = self._config.moe
        assert moe is not None
        probs_NE = F.softmax(F.linear(h_NC, router_EC), dim=1, dtype=torch.float)
        weights_Nk, ids_Nk = torch.topk(probs_NE, moe.num_experts_per_token, dim=-1)
        if moe.is_renormalised:
            weights_Nk = weights_Nk / weights_Nk.sum(-1, keepdim=True)
        weights_Nk = weights_Nk.to(h_NC.dtype)
        mask_EkN = F.one_hot(ids_Nk, moe.num_experts).permute(2, 1, 0)
        y_NC = torch.zeros_like(h_NC)
        for index, expert in enumerate(w.gated):
            choice, token = torch.where(mask_EkN[w.first_expert + index])
            rows = _gated(h_NC[token], expert) * weights_Nk[token, choice, None]
            y_NC.index_add_(0, token, rows)
        return y_NC


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _gated(h_NC: torch.Tensor, w: GatedWeights) -> torch.Tensor:
    return F.linear(F.silu(F.linear(h_NC, w.gate)) * F.linear(h_NC, w.up), w.down)
