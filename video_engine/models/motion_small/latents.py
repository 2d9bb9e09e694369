"""Motion flows to transformer latents and back.

Legend: B batch, T motion frames, G grid, C latent channels, F latent frames.
"""

import torch
from torch import Tensor

from video_engine.models.motion_small.config import MotionConfig


def pack(flow_BT2GG: Tensor, config: MotionConfig) -> Tensor:
    """Divides each frame by its scale and stacks successive frames as channels.

    Shapes: (B, T, 2, G, G) to (B, 2*P, T/P, G, G) with P frames per latent frame.
    """
    scales_T = torch.tensor(config.frame_scales, dtype=flow_BT2GG.dtype)
    scaled = flow_BT2GG / scales_T.view(1, -1, 1, 1, 1)
    batch, _, _, height, width = flow_BT2GG.shape
    shape = (batch, config.num_latent_frames, config.num_latent_channels, height, width)
    return scaled.reshape(shape).transpose(1, 2)


def unpack(latent_BCFGG: Tensor, config: MotionConfig) -> Tensor:
    """Inverse of ``pack``: (B, C, F, G, G) to flows (B, T, 2, G, G)."""
    batch, _, _, height, width = latent_BCFGG.shape
    shape = (batch, config.num_motion_frames, 2, height, width)
    flow = latent_BCFGG.transpose(1, 2).reshape(shape)
    scales_T = torch.tensor(config.frame_scales, dtype=flow.dtype)
    return flow * scales_T.view(1, -1, 1, 1, 1)
