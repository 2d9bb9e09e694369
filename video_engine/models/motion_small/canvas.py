"""The picture with soft surroundings, for views that look past its rim.

Legend: H height, W width, C colours.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture

MAX_MARGIN_RATIO = 0.4
_BLUR_RATIOS = (0.004, 0.012, 0.035, 0.09)
_BLUR_PER_DISTANCE = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """Pixels (H + 2m, W + 2m, 3) around a picture, with the margin m in pixels."""

    pixels: Picture
    margin: int


def extend_picture(picture_HW3: Picture, margin: int) -> Canvas:
    """Mirrors the picture around its rim and blurs the mirror image more the farther out it is.

    The rim continues without a seam, and no mirrored structure can be made out. The margin (pixels)
    is cut to 40 % of the longer side.
    """
    height, width = picture_HW3.shape[:2]
    longer = max(height, width)
    margin = min(margin, int(np.ceil(MAX_MARGIN_RATIO * longer)))
    if margin == 0:
        return Canvas(pixels=picture_HW3, margin=0)
    padded = cv2.copyMakeBorder(picture_HW3, margin, margin, margin, margin, cv2.BORDER_REFLECT)
    mirrored = np.asarray(padded, np.float32)
    distance = _distance_outside((height, width), margin) / longer
    result, begin = mirrored, 0.0
    for ratio in _BLUR_RATIOS:
        end = ratio / _BLUR_PER_DISTANCE
        part = ((distance - begin) / (end - begin)).clip(0, 1)[..., None]
        result = result + (_wide_blur(mirrored, ratio * longer) - result) * part
        begin = end
    pixels = result.round().clip(0, 255).astype(np.uint8)
    pixels[margin : margin + height, margin : margin + width] = picture_HW3
    return Canvas(pixels=pixels, margin=margin)


def _distance_outside(size: tuple[int, int], margin: int) -> FloatArray:
    """Distance in pixels of every canvas pixel to the picture, 0 inside."""
    outside = []
    for length in size:
        index = np.arange(length + 2 * margin, dtype=np.float32) - margin
        outside.append(np.maximum(0, np.maximum(-index, index - (length - 1))))
    return np.hypot(outside[0][:, None], outside[1][None])


def _wide_blur(image_HWC: FloatArray, sigma_px: float) -> FloatArray:
    """Gaussian blur, done at a lower resolution where sigma is large."""
    height, width = image_HWC.shape[:2]
    shrink = max(1.0, sigma_px / 2)
    size = (max(1, round(width / shrink)), max(1, round(height / shrink)))
    small = cv2.resize(image_HWC, size, interpolation=cv2.INTER_AREA)
    soft = cv2.GaussianBlur(small, (0, 0), max(sigma_px / shrink, 0.5))
    return np.asarray(cv2.resize(soft, (width, height), interpolation=cv2.INTER_CUBIC), np.float32)
