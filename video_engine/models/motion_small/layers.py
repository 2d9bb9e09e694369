"""Motion of an object apart from its ground: found in a flow, rendered from two layers.

Legend: F frames, G grid.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture
from video_engine.models.motion_small.canvas import Canvas
from video_engine.models.motion_small.fields import fit_affine
from video_engine.models.motion_small.layout import Layout
from video_engine.models.motion_small.warp import PixelGrid, sample

_MIN_SHIFT = 0.025
_MAX_UNEVENNESS = 0.4
_MAX_GROUND_REST = 0.25
_MIN_GROUND_RATIO = 0.12
_GROUND_DISTANCE_NODES = 4
_ROBUST_ROUNDS = 4
_ROBUST_SCALE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMotion:
    """Ground flow (F, 2, G, G), affine, and the object's shift beyond it (F, 2)."""

    ground: FloatArray
    shift: FloatArray


def split_motion(flow_F2GG: FloatArray, layout: Layout) -> LayerMotion | None:
    """Splits a flow into an affine ground and a shifted object; None where it is neither."""
    reach = 2 * _GROUND_DISTANCE_NODES + 1
    near = np.asarray(cv2.dilate(layout.mask, np.ones((reach, reach), np.uint8)))
    outside = (near == 0).astype(np.float32)
    core = np.asarray(cv2.erode(layout.mask, np.ones((3, 3), np.uint8))) > 0
    if float(outside.mean()) < _MIN_GROUND_RATIO or not core.any():
        return None
    ground = _robust_ground(flow_F2GG, outside)
    rest = flow_F2GG - ground
    inside = rest[:, :, core]
    shift = inside.mean(-1)
    strength = float(np.sqrt(np.square(shift).sum(1).mean()))
    unevenness = float(np.sqrt(np.square(inside - shift[..., None]).sum(1).mean()))
    ground_rest = float(np.median(np.sqrt(np.square(rest[:, :, outside > 0]).sum(1).mean(0))))
    if strength < _MIN_SHIFT or unevenness > _MAX_UNEVENNESS * strength:
        return None
    if ground_rest > _MAX_GROUND_REST * strength:
        return None
    return LayerMotion(ground=ground, shift=shift.astype(np.float32))


def _robust_ground(flow_F2GG: FloatArray, outside_GG: FloatArray) -> FloatArray:
    """Affine flow of the ground; nodes that follow the object lose their weight round by round."""
    weight = outside_GG
    for _ in range(_ROBUST_ROUNDS):
        ground = fit_affine(flow_F2GG, weight).flow(outside_GG.shape[0])
        error = np.sqrt(np.square(flow_F2GG - ground).sum(1).mean(0))
        weight = (outside_GG / (error + _ROBUST_SCALE)).astype(np.float32)
    return fit_affine(flow_F2GG, weight).flow(outside_GG.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCanvases:
    """Object, its opacity and the ground without it, each with the same margin."""

    picture: Canvas
    alpha: FloatArray
    plate: Canvas

    def frame(self, motion: LayerMotion, index: int, grid: PixelGrid, cover: float) -> Picture:
        """One frame: the ground warped, the object shifted over it."""
        x_HW, y_HW = grid.source_px(motion.ground[index], cover)
        ground = sample(self.plate, x_HW, y_HW)
        shift_px = motion.shift[index] * np.float32(grid.half_px / cover)
        x_HW, y_HW = x_HW + shift_px[0], y_HW + shift_px[1]
        height, width = self.alpha.shape
        maps = x_HW + np.float32((width - 1) / 2), y_HW + np.float32((height - 1) / 2)
        part = cv2.remap(self.alpha, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        part = np.asarray(part, np.float32)[..., None]
        moved = sample(self.picture, x_HW, y_HW)
        return (ground + part * (moved.astype(np.float32) - ground)).round().astype(np.uint8)
