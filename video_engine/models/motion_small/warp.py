"""Pictures sampled along a motion field, at the picture's own resolution.

Legend: F frames, G grid, H height, W width.
"""

from dataclasses import dataclass
from typing import Self

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture
from video_engine.models.motion_small.canvas import Canvas
from video_engine.models.motion_small.resampling import cubic_matrix

_BASE_SHARPENING = 0.06
_ZOOM_SHARPENING = 1.9
_MAX_SHARPENING = 1.0
_SHARPENING_SIGMA_PX = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelGrid:
    """Pixels of a W x H picture on the square canvas, and the weights from grid nodes to pixels.

    Shapes: rows (H, G) and cols (W, G) interpolation weights; x_px (W,) and y_px (H,) distances
    from the picture's middle.
    """

    rows: FloatArray
    cols: FloatArray
    x_px: FloatArray
    y_px: FloatArray

    @classmethod
    def build(cls, height: int, width: int, grid: int) -> Self:
        """Pixel centres at -1..1 along the longer side."""
        half_px = (max(height, width) - 1) / 2
        axes = [np.arange(length) - (length - 1) / 2 for length in (height, width)]
        rows, cols = (cubic_matrix((axis / half_px + 1) * (grid - 1) / 2, grid) for axis in axes)
        y_px, x_px = (axis.astype(np.float32) for axis in axes)
        return cls(rows=rows, cols=cols, x_px=x_px, y_px=y_px)

    @property
    def half_px(self) -> float:
        """Pixels per canvas unit."""
        return (max(len(self.x_px), len(self.y_px)) - 1) / 2

    def upsample(self, field_CGG: FloatArray) -> FloatArray:
        """Grid maps (C, G, G) to pixel maps (C, H, W); exact for affine maps."""
        return np.asarray(self.rows @ (field_CGG @ self.cols.T), np.float32)

    def source_px(self, flow_2GG: FloatArray, cover: float) -> tuple[FloatArray, FloatArray]:
        """Where each pixel reads the picture, in pixels from its middle: (p + f(p)) / cover."""
        flow_2HW = self.upsample(flow_2GG * np.float32(self.half_px / cover))
        flow_2HW[0] += self.x_px / np.float32(cover)
        flow_2HW[1] += (self.y_px / np.float32(cover))[:, None]
        return flow_2HW[0], flow_2HW[1]


def sample(canvas: Canvas, x_HW: FloatArray, y_HW: FloatArray) -> Picture:
    """Bicubic samples of a canvas at pixel distances from its middle; mirrored beyond its rim."""
    height, width = canvas.pixels.shape[:2]
    map_x = x_HW + np.float32((width - 1) / 2)
    map_y = y_HW + np.float32((height - 1) / 2)
    warped = cv2.remap(canvas.pixels, map_x, map_y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(warped, np.uint8)


def sharpening_amount(enlargement: float) -> float:
    """Unsharp-mask amount that makes up for bicubic softening at a given enlargement."""
    amount = _BASE_SHARPENING + _ZOOM_SHARPENING * max(enlargement - 1, 0.0)
    return min(amount, _MAX_SHARPENING)


def sharpen(frame_HW3: Picture, amount: float) -> Picture:
    """Unsharp mask: frame + amount * (frame - blurred frame)."""
    soft = cv2.GaussianBlur(frame_HW3, (0, 0), _SHARPENING_SIGMA_PX)
    return np.asarray(cv2.addWeighted(frame_HW3, 1 + amount, soft, -amount, 0), np.uint8)
