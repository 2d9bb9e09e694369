"""The stock Wan transformer as a denoiser of motion latents.

Legend: B batch, C channels, F latent frames, G grid, L text tokens, D text width.
"""

from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from video_engine.models.motion_small.config import MotionConfig

TRAIN_TIMESTEPS = 1000.0


def transformer_config(config: MotionConfig) -> dict[str, Any]:
    """Keyword arguments of the stock ``WanTransformer3DModel``: 4.4 M parameters, 32 tokens."""
    return {
        "patch_size": (1, 8, 8),
        "num_attention_heads": 3,
        "attention_head_dim": 64,
        "in_channels": config.num_latent_channels + config.num_condition_channels,
        "out_channels": config.num_latent_channels,
        "text_dim": config.text.dim,
        "freq_dim": 64,
        "ffn_dim": 768,
        "num_layers": 6,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
        "rope_max_seq_len": 64,
    }


def predict_motion(
    transformer: WanTransformer3DModel,
    latent_BCFGG: Tensor,
    condition_BCGG: Tensor,
    text_BLD: Tensor,
    t_B: Tensor,
) -> Tensor:
    """The clean latent x0 that the transformer reads from a noisy one at noise level t.

    Shapes: latent (B, C, F, G, G), condition (B, 7, G, G), text (B, L, D), t (B,) in 0..1.
    """
    inputs = motion_inputs(latent_BCFGG, condition_BCGG, t_B)
    return transformer(**inputs, encoder_hidden_states=text_BLD, return_dict=False)[0]


def motion_inputs(latent_BCFGG: Tensor, condition_BCGG: Tensor, t_B: Tensor) -> dict[str, Tensor]:
    """The transformer's inputs besides the text; shapes as in ``predict_motion``."""
    num_frames = latent_BCFGG.shape[2]
    condition = condition_BCGG.unsqueeze(2).expand(-1, -1, num_frames, -1, -1)
    model_input = torch.cat([latent_BCFGG, condition.to(latent_BCFGG.dtype)], 1)
    return {"hidden_states": model_input, "timestep": t_B * TRAIN_TIMESTEPS}


def velocity_from_motion(x_t: Tensor, x0: Tensor, t: float) -> Tensor:
    """Rectified-flow velocity of a clean prediction: v = (x_t - x0) / t.

    Source: x_t = (1 - t) x0 + t noise, v = noise - x0 (Liu et al. 2022, arXiv:2209.03003).
    """
    return (x_t - x0) / t
