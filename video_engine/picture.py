"""From any picture to the model's canvas: upright, RGB, exact size, never stretched."""

# H height, W width

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

if TYPE_CHECKING:
    from video_engine.types import Fit, VideoLimits


def upright_rgb(image: Image.Image) -> Image.Image:
    """The picture as people see it: EXIF rotation applied, transparency over black, RGB.

    16-bit and float greys are brought to 8 bits by their own range (65535, and 1 or 255).
    """
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image, dtype=np.float64))).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        black = Image.new("RGBA", rgba.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, rgba).convert("RGB")
    return image.convert("RGB")


def fit_picture(image: Image.Image, width: int, height: int, fit: Fit) -> np.ndarray:
    """Bring a picture to exactly (width, height) without changing its proportions.

    "crop" covers the canvas and cuts the overhang evenly from both ends; "pad" shows the whole
    picture, centred on black bars. Scaling is Lanczos.

    Shapes: result (H, W, 3) uint8.
    """
    rgb = upright_rgb(image)
    if rgb.size == (width, height):
        return np.array(rgb)
    if fit == "crop":
        box = cover_box(rgb.size, width, height)
        return np.array(rgb.resize((width, height), Image.Resampling.LANCZOS, box=box))
    scale = min(width / rgb.width, height / rgb.height)
    inner_width = min(max(round(rgb.width * scale), 1), width)
    inner_height = min(max(round(rgb.height * scale), 1), height)
    inner = rgb.resize((inner_width, inner_height), Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", (width, height))
    canvas.paste(inner, ((width - inner_width) // 2, (height - inner_height) // 2))
    return np.array(canvas)


def cover_box(size: tuple[int, int], width: int, height: int) -> tuple[float, float, float, float]:
    """The largest centred box (left, top, right, bottom) of `size` with width:height proportions.

    Its edges may fall between pixels: the resampler takes them as they are, so nothing stretches.
    """
    image_width, image_height = size
    scale = max(width / image_width, height / image_height)
    box_width = min(width / scale, image_width)
    box_height = min(height / scale, image_height)
    left, top = (image_width - box_width) / 2, (image_height - box_height) / 2
    return (left, top, left + box_width, top + box_height)


def default_size(image_size: tuple[int, int], limits: VideoLimits) -> tuple[int, int]:
    """The legal (width, height) nearest to the picture's proportions at the default area."""
    image_width, image_height = image_size
    scale = math.sqrt(limits.default_area / (image_width * image_height))
    step = canvas_step(limits)
    width = _legal_side(image_width * scale, limits, step)
    height = _legal_side(image_height * scale, limits, step)
    while width * height > limits.max_area:
        if width >= height:
            width -= step
        else:
            height -= step
    return width, height


def canvas_step(limits: VideoLimits) -> int:
    """The multiple a side must be of: the model's, and even (4:2:0 video halves its colours)."""
    return math.lcm(limits.side_multiple, 2)


def picture_sha256(image: Image.Image) -> str:
    """SHA-256 over "WxH", a newline and the upright RGB bytes: the same in any file format."""
    rgb = upright_rgb(image)
    return hashlib.sha256(f"{rgb.width}x{rgb.height}\n".encode() + rgb.tobytes()).hexdigest()


def _legal_side(side: float, limits: VideoLimits, step: int) -> int:
    lowest, highest = -(-limits.min_side // step), limits.max_side // step
    return step * min(max(round(side / step), lowest), highest)


def _eight_bits(values_HW: np.ndarray) -> np.ndarray:
    peak = float(np.nanmax(values_HW)) if values_HW.size else 0.0
    top = 65535.0 if peak > 255.0 else 255.0 if peak > 1.0 else 1.0
    return (np.nan_to_num(values_HW).clip(0, top) * (255.0 / top)).round().astype(np.uint8)
