"""The main object of a picture: what differs in colour from the picture's rim, near the middle."""

import cv2
import numpy as np

from video_engine.models.motion_small.arrays import FloatArray, Picture

_SIDE = 96
_NUM_RIM_COLOURS = 4
_NUM_ROUNDS = 8
_CENTRE_SPREAD = 0.7
_AREA_RANGE = (0.02, 0.6)


def rim_colours(lab_HW3: FloatArray, num_colours: int = _NUM_RIM_COLOURS) -> FloatArray:
    """Colours (k, 3) of the top, left and right rim: k-means from evenly spaced luminances."""
    band = max(1, lab_HW3.shape[0] // 24)
    parts = [lab_HW3[:band], lab_HW3[:, :band], lab_HW3[:, -band:]]
    samples = np.concatenate([part.reshape(-1, 3) for part in parts])
    ranks = np.linspace(0, len(samples) - 1, 2 * num_colours + 1).round().astype(int)[1::2]
    centres = samples[np.argsort(samples[:, 0], kind="stable")[ranks]]
    for _ in range(_NUM_ROUNDS):
        nearest = ((samples[:, None] - centres[None]) ** 2).sum(-1).argmin(1)
        for k in range(num_colours):
            if (nearest == k).any():
                centres[k] = samples[nearest == k].mean(0)
    return centres


def saliency_map(picture_HW3: Picture) -> FloatArray:
    """Lab distance to the nearest rim colour times a central Gaussian, at 96 px, 0..1."""
    scale = _SIDE / max(picture_HW3.shape[:2])
    size = [max(8, round(side * scale)) for side in picture_HW3.shape[1::-1]]
    small = np.asarray(cv2.resize(picture_HW3, size, interpolation=cv2.INTER_AREA))
    smooth = cv2.GaussianBlur(small.astype(np.float32) / 255.0, (0, 0), 1.5)
    lab = np.asarray(cv2.cvtColor(smooth, cv2.COLOR_RGB2LAB), np.float32)
    distance = ((lab[:, :, None] - rim_colours(lab)) ** 2).sum(-1).min(-1) ** 0.5
    y = np.linspace(-1, 1, size[1])[:, None]
    x = np.linspace(-1, 1, size[0])[None]
    weighted = distance * np.exp(-(x**2 + y**2) / _CENTRE_SPREAD)
    return (weighted / max(float(weighted.max()), 1e-6)).astype(np.float32)


def object_mask(picture_HW3: Picture, size: tuple[int, int]) -> FloatArray:
    """Binary mask (rows, cols) of the largest salient part; size = (cols, rows).

    A centred ellipse stands in where the salient part covers under 2 % or over 60 % of the picture.
    """
    levels = (saliency_map(picture_HW3) * 255).astype(np.uint8)
    _, binary = cv2.threshold(levels, 0, 1, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(np.asarray(binary, np.uint8))
    if count > 1:
        largest = 1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())
        part = (labels == largest).astype(np.float32)
        if _AREA_RANGE[0] <= float(part.mean()) <= _AREA_RANGE[1]:
            small = np.asarray(cv2.resize(part, size, interpolation=cv2.INTER_AREA))
            return (small > 0.5).astype(np.float32)
    return centred_ellipse(size)


def centred_ellipse(size: tuple[int, int], radius: float = 0.5) -> FloatArray:
    """Binary ellipse (rows, cols) around the middle; radius is a ratio of the half sides."""
    y = np.linspace(-1, 1, size[1])[:, None]
    x = np.linspace(-1, 1, size[0])[None]
    return (x**2 + y**2 < radius**2).astype(np.float32)
