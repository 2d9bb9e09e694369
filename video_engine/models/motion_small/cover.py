"""Keeping the view inside the picture: camera moves are joined by a slight zoom where it matters.

Legend: F frames.
"""

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture
from video_engine.models.motion_small.fields import fit_affine

_CORNERS = np.array([[-1, -1], [1, -1], [-1, 1], [1, 1]], np.float32)
_SMOOTH_RIM, _STRUCTURED_RIM = 2.0, 9.0
_STRENGTHS = (0.25, 0.9)
_RIGID_RATIOS = (0.8, 0.92)
_MAX_ZOOM_PER_MOTION = 0.55


def rim_structure(picture_HW3: Picture) -> float:
    """Mean gradient along the rim in grey levels, on a 128-px thumbnail."""
    small = cv2.resize(picture_HW3, (128, 128), interpolation=cv2.INTER_AREA)
    grey = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.float32)
    rim = np.ones_like(grey, dtype=bool)
    rim[12:-12, 12:-12] = False
    grad_y, grad_x = np.gradient(grey)
    return float(np.hypot(grad_x, grad_y)[rim].mean())


def cover_strength(picture_HW3: Picture) -> float:
    """How far the view keeps inside: 0.25 for smooth rims up to 0.9 for structured ones."""
    part = (rim_structure(picture_HW3) - _SMOOTH_RIM) / (_STRUCTURED_RIM - _SMOOTH_RIM)
    return _STRENGTHS[0] + (_STRENGTHS[1] - _STRENGTHS[0]) * min(max(part, 0.0), 1.0)


def cover_factors(
    flow_F2GG: FloatArray, extent: tuple[float, float], strength: float
) -> FloatArray:
    """Zoom (F,) >= 1, never falling, that keeps shifts and rotations inside the picture.

    Only the similarity part of the motion counts, less its own zoom out; clips of which it explains
    little (waves, sways) are left alone. The zoom stays under 55 % of the motion that asks for it,
    so that a rotation still looks like one.
    """
    affine = fit_affine(flow_F2GG)
    scale = 1 + (affine.matrix[:, 0, 0] + affine.matrix[:, 1, 1]) / 2
    turn = (affine.matrix[:, 1, 0] - affine.matrix[:, 0, 1]) / 2
    similar = np.stack([np.stack([scale, -turn], -1), np.stack([turn, scale], -1)], 1)
    half = np.asarray(extent, np.float32)
    corners = np.einsum("fij,nj->fni", similar, _CORNERS * half) + affine.shift[:, None]
    size = np.hypot(scale, turn)
    reach = np.abs(corners / half).max(axis=(1, 2)) / np.maximum(size, 1.0)
    motion = np.hypot(*affine.shift.T) + np.abs(turn)
    excess = np.minimum(strength * (reach - 1).clip(0), _MAX_ZOOM_PER_MOTION * motion)
    wanted = 1 + _rigid_share(flow_F2GG, similar, affine.shift) * excess
    return np.maximum.accumulate(wanted).astype(np.float32)


def _rigid_share(flow_F2GG: FloatArray, similar_F22: FloatArray, shift_F2: FloatArray) -> float:
    """0 where the similarity explains under 80 % of the motion, 1 above 92 %."""
    size = flow_F2GG.shape[-1]
    line = np.linspace(-1, 1, size, dtype=np.float32)
    points = np.stack(np.meshgrid(line, line))
    matrix = similar_F22 - np.eye(2, dtype=np.float32)
    fitted = np.einsum("fij,jyx->fiyx", matrix, points) + shift_F2[..., None, None]
    motion = float(np.square(flow_F2GG).sum())
    explained = 1 - float(np.square(flow_F2GG - fitted).sum()) / max(motion, 1e-12)
    low, high = _RIGID_RATIOS
    return min(max((explained - low) / (high - low), 0.0), 1.0)
