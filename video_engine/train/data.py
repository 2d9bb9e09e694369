"""Training clips: a bank of picture layouts, and batches of (latent, condition, prompt)."""

from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch import Tensor

from video_engine.models.motion_small.arrays import FloatArray, Picture
from video_engine.models.motion_small.config import MotionConfig
from video_engine.models.motion_small.latents import pack
from video_engine.models.motion_small.layout import Layout, build_layout
from video_engine.models.motion_small.saliency import object_mask
from video_engine.train.flows import CAMERA_KINDS, FLOWS, OBJECT_KINDS, MotionDraw, make_flow
from video_engine.train.pictures import TRAINING_PHOTOS
from video_engine.train.procedural import draw_picture, fractal_noise
from video_engine.train.prompts import make_prompt

_CROP_SIDE = 96
_COMPOSITE_RATIO = 0.55
_WIDE_RATIO = 0.35
_PHOTO_RATIO = 0.4
_PAIR_RATIO = 0.18
_NULL_RATIO = 0.05
_SPEED_RATIOS = {"slow": 0.25, "plain": 0.5, "fast": 0.25}

SHARES: dict[str, float] = {
    **dict.fromkeys(CAMERA_KINDS, 1.0),
    **dict.fromkeys(OBJECT_KINDS, 1.6),
    **dict.fromkeys(("wave", "ripple", "breathe"), 3.5),
    **dict.fromkeys(("float", "parallax"), 2.5),
    "sway": 1.5,
    "shake": 0.8,
    "still": 0.8,
    "ambient": 1.2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch: latents (B, C, F, G, G), conditions (B, 7, G, G), prompts (B), weights (B,)."""

    latents: Tensor
    conditions: Tensor
    prompts: list[str | None]
    weights: Tensor


def _crop(rng: np.random.Generator, picture_HW3: Picture) -> Picture:
    """A random square crop (96, 96, 3), flipped and with its colours rescaled."""
    short = min(picture_HW3.shape[:2])
    side = int(rng.integers(int(short * 0.35), short + 1))
    top, left = (int(rng.integers(0, n - side + 1)) for n in picture_HW3.shape[:2])
    crop = picture_HW3[top : top + side, left : left + side]
    crop = cv2.resize(crop, (_CROP_SIDE, _CROP_SIDE), interpolation=cv2.INTER_AREA)
    gain = rng.uniform(0.6, 1.3, 3) * rng.uniform(0.7, 1.2)
    tinted = np.asarray(crop, np.float64) * gain + rng.uniform(-15, 25)
    image = tinted.clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(image[:, ::-1] if rng.random() < 0.5 else image)


def _blob(rng: np.random.Generator, side: int) -> FloatArray:
    """Ellipse with a noisy edge as a binary mask (side, side)."""
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    cx, cy = rng.uniform(-0.45, 0.45, 2)
    radius_x, radius_y = rng.uniform(0.2, 0.6, 2)
    edge = 1 + 0.8 * (fractal_noise(rng, side) - 0.5)
    return (np.hypot((x - cx) / radius_x, (y - cy) / radius_y) < edge).astype(np.float32)


def _random_crop(rng: np.random.Generator, photos: list[Picture]) -> Picture:
    if rng.random() < _PHOTO_RATIO:
        return _crop(rng, photos[int(rng.integers(len(photos)))])
    return _crop(rng, draw_picture(rng))


def _random_layout(rng: np.random.Generator, photos: list[Picture], grid: int) -> Layout:
    crop = _random_crop(rng, photos)
    if rng.random() < _COMPOSITE_RATIO:
        mask = _blob(rng, _CROP_SIDE)
        crop = np.where(mask[..., None] > 0, _random_crop(rng, photos), crop)
        mask = (cv2.resize(mask, (grid, grid), interpolation=cv2.INTER_AREA) > 0.5).astype(
            np.float32
        )
    else:
        mask = object_mask(crop, (grid, grid))
    small = np.asarray(cv2.resize(crop, (grid, grid), interpolation=cv2.INTER_AREA), np.float32)
    extent = (1.0, 1.0)
    if rng.random() < _WIDE_RATIO:
        short = float(rng.uniform(0.5, 1.0))
        extent = (1.0, short) if rng.random() < 0.7 else (short, 1.0)
    return build_layout(small.transpose(2, 0, 1) / 127.5 - 1.0, mask, extent)


def build_bank(num_layouts: int, grid: int, seed: int) -> list[Layout]:
    """Layouts of crops of the training photos and of procedural pictures, half of them composed."""
    rng = np.random.default_rng(seed)
    photos = [photo.read() for photo in TRAINING_PHOTOS]
    return [_random_layout(rng, photos, grid) for _ in range(num_layouts)]


def draw_kinds(rng: np.random.Generator) -> tuple[str, ...]:
    """One kind of motion by its share, or a camera motion together with another kind."""
    kinds, shares = list(SHARES), np.array(list(SHARES.values()))
    first = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
    if rng.random() >= _PAIR_RATIO or first in {"still", "ambient"}:
        return (first,)
    others = [k for k in CAMERA_KINDS if k.split()[0] != first.split()[0]]
    return (others[int(rng.integers(len(others)))], first)


def draw_clip(rng: np.random.Generator, layout: Layout) -> tuple[FloatArray, str | None]:
    """Flow (T, 2, G, G) and prompt of a random motion over the layout; None is the null prompt."""
    kinds = draw_kinds(rng)
    speed = str(rng.choice(list(_SPEED_RATIOS), p=list(_SPEED_RATIOS.values())))
    parts = [make_flow(kind, layout, MotionDraw.sample(rng, speed)) for kind in kinds]
    prompt = None if rng.random() < _NULL_RATIO else make_prompt(rng, kinds, speed)
    return np.stack(parts).sum(axis=0, dtype=np.float32), prompt


def draw_batch(
    rng: np.random.Generator, bank: list[Layout], size: int, config: MotionConfig
) -> Batch:
    """A batch of random clips; small motions get up to three times the weight of large ones."""
    layouts = [bank[int(i)] for i in rng.integers(0, len(bank), size)]
    clips = [draw_clip(rng, layout) for layout in layouts]
    latents = pack(torch.from_numpy(np.stack([flow for flow, _ in clips])), config)
    power = latents.square().mean(dim=(1, 2, 3, 4))
    return Batch(
        latents=latents,
        conditions=torch.from_numpy(np.stack([layout.condition() for layout in layouts])),
        prompts=[prompt for _, prompt in clips],
        weights=(power + 0.1).rsqrt().clamp(max=3.0),
    )


def measure_frame_scales(bank: list[Layout], num_clips: int, seed: int) -> tuple[float, ...]:
    """Root mean square of random flows per motion frame, rounded to four digits."""
    rng = np.random.default_rng(seed)
    total = np.zeros(next(iter(FLOWS.values()))(bank[0], MotionDraw()).shape[0])
    for _ in range(num_clips):
        flow, _ = draw_clip(rng, bank[int(rng.integers(len(bank)))])
        total += np.square(flow, dtype=np.float64).mean(axis=(1, 2, 3))
    return tuple(round(float(s), 4) for s in np.sqrt(total / num_clips))
