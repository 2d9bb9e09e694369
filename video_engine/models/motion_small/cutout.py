"""The main object cut from its picture, with the ground filled in behind it, where that is safe.

Legend: H height, W width.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture
from video_engine.models.motion_small.saliency import object_mask

_SIDE = 192
_ROUNDS = 4
_AREA_RANGE = (0.03, 0.35)
_MAX_TOUCHED_BORDERS = 1
_TOUCH_RATIO = 0.03
_MIN_COLOUR_DISTANCE = 22.0
_MIN_OVERLAP = 0.88
_MIN_SOLIDITY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutout:
    """Opacity of the object (H, W) in 0..1 and the picture without it (H, W, 3)."""

    alpha: FloatArray
    plate: Picture


def cut_out(picture_HW3: Picture) -> Cutout | None:
    """The object on its own layer, or None where the cut cannot be trusted.

    Trusted: 3 to 35 % of the picture, at most one border touched, compact, colours far from the
    ground's, and the same cut from a smaller seed.
    """
    scale = _SIDE / max(picture_HW3.shape[:2])
    size = (round(picture_HW3.shape[1] * scale), round(picture_HW3.shape[0] * scale))
    small = np.asarray(cv2.resize(picture_HW3, size, interpolation=cv2.INTER_AREA))
    seed = object_mask(picture_HW3, size)
    mask = _grab(small, seed, 3)
    if not _is_trusted(small, mask) or _overlap(mask, _grab(small, seed, 9)) < _MIN_OVERLAP:
        return None
    alpha = _refine(picture_HW3, mask)
    return Cutout(alpha=alpha, plate=_fill(picture_HW3, small, mask))


def _grab(small_HW3: Picture, seed_HW: FloatArray, erosion: int) -> FloatArray:
    """GrabCut from a seed, then the largest part with its holes closed; binary (H, W)."""
    binary = seed_HW.astype(np.uint8)
    core = np.asarray(cv2.erode(binary, np.ones((erosion, erosion), np.uint8)))
    near = np.asarray(cv2.dilate(binary, np.ones((25, 25), np.uint8)))
    labels = np.full(binary.shape, cv2.GC_BGD, np.uint8)
    labels[near > 0] = cv2.GC_PR_BGD
    labels[binary > 0] = cv2.GC_PR_FGD
    labels[core > 0] = cv2.GC_FGD
    if not (labels & 1).any() or not (labels == cv2.GC_BGD).any():
        return np.zeros_like(seed_HW)
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.setRNGSeed(0)  # GrabCut's k-means would otherwise depend on earlier OpenCV calls
    cv2.grabCut(small_HW3, labels, (0, 0, 1, 1), *models, _ROUNDS, cv2.GC_INIT_WITH_MASK)
    found = (labels & 1).astype(np.uint8)
    closed = np.asarray(cv2.morphologyEx(found, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8)))
    count, parts, stats, _ = cv2.connectedComponentsWithStats(closed)
    if count < 2:
        return np.zeros_like(seed_HW)
    return (parts == 1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())).astype(np.float32)


def _is_trusted(small_HW3: Picture, mask_HW: FloatArray) -> bool:
    if not _AREA_RANGE[0] <= float(mask_HW.mean()) <= _AREA_RANGE[1]:
        return False
    borders = (mask_HW[0], mask_HW[-1], mask_HW[:, 0], mask_HW[:, -1])
    if sum(float(border.mean()) > _TOUCH_RATIO for border in borders) > _MAX_TOUCHED_BORDERS:
        return False
    if _solidity(mask_HW) < _MIN_SOLIDITY:
        return False
    lab = np.asarray(cv2.cvtColor(small_HW3.astype(np.float32) / 255, cv2.COLOR_RGB2LAB))
    wide = np.asarray(cv2.dilate(mask_HW, np.ones((31, 31), np.uint8)))
    ring = (wide > 0) & (mask_HW == 0)
    if not ring.any():
        return False
    distance = np.linalg.norm(np.median(lab[mask_HW > 0], 0) - np.median(lab[ring], 0))
    return float(distance) >= _MIN_COLOUR_DISTANCE


def _solidity(mask_HW: FloatArray) -> float:
    """Area over the area of the convex hull."""
    ys, xs = np.nonzero(mask_HW)
    hull = cv2.convexHull(np.stack([xs, ys], -1).astype(np.int32))
    return float(mask_HW.sum()) / max(float(cv2.contourArea(hull)), 1.0)


def _overlap(first_HW: FloatArray, second_HW: FloatArray) -> float:
    union = float(np.maximum(first_HW, second_HW).sum())
    return float(np.minimum(first_HW, second_HW).sum()) / max(union, 1.0)


def _refine(picture_HW3: Picture, mask_hw: FloatArray) -> FloatArray:
    """Mask to full size, its edge pulled to the picture's by a guided filter.

    Source: He, Sun, Tang 2013, Guided Image Filtering, equations 5-8, grey guide.
    """
    height, width = picture_HW3.shape[:2]
    guide = np.asarray(cv2.cvtColor(picture_HW3, cv2.COLOR_RGB2GRAY), np.float32) / 255
    mask = np.asarray(cv2.resize(mask_hw, (width, height), interpolation=cv2.INTER_LINEAR))
    reach = 2 * max(2, max(height, width) // 96) + 1

    def mean(field: FloatArray) -> FloatArray:
        return np.asarray(cv2.blur(field, (reach, reach)), np.float32)

    mean_guide, mean_mask = mean(guide), mean(mask)
    slope = (mean(guide * mask) - mean_guide * mean_mask) / (
        mean(guide * guide) - mean_guide * mean_guide + 1e-3
    )
    offset = mean_mask - slope * mean_guide
    alpha = mean(slope) * guide + mean(offset)
    return ((alpha - 0.15) / 0.7).clip(0, 1).astype(np.float32)


def _fill(picture_HW3: Picture, small_hw3: Picture, mask_hw: FloatArray) -> Picture:
    """The picture with the object painted over from its surroundings (Telea, smoothed)."""
    height, width = picture_HW3.shape[:2]
    hole = np.asarray(cv2.dilate(mask_hw, np.ones((15, 15), np.uint8)))
    painted = cv2.inpaint(small_hw3, (hole * 255).astype(np.uint8), 5, cv2.INPAINT_TELEA)
    painted = cv2.GaussianBlur(painted, (0, 0), 3.0)
    painted = np.asarray(cv2.resize(painted, (width, height), interpolation=cv2.INTER_CUBIC))
    wide = cv2.GaussianBlur(
        np.asarray(cv2.dilate(mask_hw, np.ones((11, 11), np.uint8))), (0, 0), 1.5
    )
    part = np.asarray(cv2.resize(wide, (width, height), interpolation=cv2.INTER_LINEAR))[..., None]
    mixed = picture_HW3 * (1 - part) + painted * part
    return mixed.round().clip(0, 255).astype(np.uint8)
