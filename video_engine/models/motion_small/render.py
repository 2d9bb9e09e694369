"""From a generated motion to frames.

Legend: T motion frames, F frames, G grid, H height, W width.
"""

import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture
from video_engine.models.motion_small.canvas import Canvas, extend_picture
from video_engine.models.motion_small.cover import cover_factors, cover_strength
from video_engine.models.motion_small.cutout import cut_out
from video_engine.models.motion_small.fields import (
    fit_affine,
    frames_from_motion,
    make_rigid,
    smooth,
    unfold,
)
from video_engine.models.motion_small.layers import LayerCanvases, split_motion
from video_engine.models.motion_small.layout import Layout, node_coordinates
from video_engine.models.motion_small.warp import PixelGrid, sample, sharpen, sharpening_amount

_SMOOTHING_NODES = 0.6


def clean_motion(flow_T2GG: FloatArray, num_frames: int) -> FloatArray:
    """Generated motion to frame flows (F, 2, G, G): smoothed, rigid where nearly so, unfolded."""
    smoothed = smooth(flow_T2GG, _SMOOTHING_NODES)
    return frames_from_motion(unfold(make_rigid(smoothed)), num_frames)


def render(picture_HW3: Picture, flow_T2GG: FloatArray, layout: Layout, num_frames: int) -> Picture:
    """Frames (F, H, W, 3) of the picture under the motion; frame 0 is the picture itself.

    An object that moves by itself is rendered as a layer of its own where its cut-out can be
    trusted; elsewhere the picture stretches around it.
    """
    flow_F2GG = clean_motion(flow_T2GG, num_frames)
    covers_F = cover_factors(flow_F2GG, layout.extent, cover_strength(picture_HW3))
    height, width = picture_HW3.shape[:2]
    grid = PixelGrid.build(height, width, flow_F2GG.shape[-1])
    motion = split_motion(flow_F2GG, layout)
    margin = margin_px(flow_F2GG, covers_F, layout.extent, grid.half_px)
    canvas = extend_picture(picture_HW3, margin)
    layers = None if motion is None else _layers(picture_HW3, canvas)
    if motion is not None and layers is not None:
        flow_F2GG = motion.ground
    amounts_F = _sharpening(flow_F2GG, covers_F)
    frames = np.empty((num_frames, height, width, 3), np.uint8)
    frames[0] = picture_HW3
    for index in range(1, num_frames):
        cover = float(covers_F[index])
        if motion is not None and layers is not None:
            frame = layers.frame(motion, index, grid, cover)
        else:
            frame = sample(canvas, *grid.source_px(flow_F2GG[index], cover))
        frames[index] = sharpen(frame, amounts_F[index])
    return frames


def margin_px(
    flow_F2GG: FloatArray, covers_F: FloatArray, extent: tuple[float, float], half_px: float
) -> int:
    """How far the frames look past the picture's rim, in whole pixels, with two to spare."""
    half = np.asarray(extent, np.float32)[:, None, None]
    nodes = np.stack(node_coordinates(flow_F2GG.shape[-1])).clip(-half, half)
    reach = np.abs(nodes + flow_F2GG) / covers_F[:, None, None, None] - half
    return int(np.ceil(max(float(reach.max()), 0.0) * half_px)) + 2


def _layers(picture_HW3: Picture, canvas: Canvas) -> LayerCanvases | None:
    cutout = cut_out(picture_HW3)
    if cutout is None:
        return None
    plate = extend_picture(cutout.plate, canvas.margin)
    return LayerCanvases(picture=canvas, alpha=cutout.alpha, plate=plate)


def _sharpening(flow_F2GG: FloatArray, covers_F: FloatArray) -> list[float]:
    """Unsharp amounts per frame from the enlargement: cover over the root of |det(I + A)|."""
    matrices = fit_affine(flow_F2GG).matrix + np.eye(2, dtype=np.float32)
    scales = np.sqrt(np.abs(np.linalg.det(matrices))).clip(0.1)
    return [sharpening_amount(float(c / s)) for c, s in zip(covers_F, scales, strict=True)]
