"""The contact sheet of motion-small: prompts as captions, six frames of each clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.report import RESULTS
from benchmarks.suites.motion_clips import load_subjects, run_steps
from video_engine.models.motion_small.model import MotionSmall

ROWS: tuple[tuple[str, str], ...] = (
    ("pagoda", "pan right"),
    ("pagoda", "zooming in on the palace"),
    ("coffee", "rotate clockwise"),
    ("flower", "zoom out"),
    ("cat", "fly forward"),
    ("flower", "the blossom moves right"),
    ("rocket", "the rocket rises"),
    ("flower", "the dahlia floats"),
    ("astronaut", "parallax effect"),
    ("cat", "the cat breathes"),
    ("pagoda", "swaying in the wind"),
    ("camera", "tilt up and rotate counterclockwise"),
)
_SIDE_PX = 512
_THUMB_PX = 232
_NUM_FRAMES = 25
_SHOWN = (0, 5, 10, 15, 20, 24)
_GAP_PX = 6
_CAPTION_PX = 34


def save_contact_sheet(model: MotionSmall, path: Path | None = None) -> Path:
    """Renders every row at 512 x 512 and writes the sheet; returns its path."""
    subjects = {s.name: s for s in load_subjects(_SIDE_PX, model.config.grid)}
    width = len(_SHOWN) * (_THUMB_PX + _GAP_PX) + _GAP_PX
    row_height = _CAPTION_PX + _THUMB_PX + _GAP_PX
    sheet = Image.new("RGB", (width, row_height * len(ROWS) + _GAP_PX), "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(20)
    for row, (name, prompt) in enumerate(ROWS):
        top = row * row_height
        pen.text((_GAP_PX + 2, top + 7), f"{prompt}", fill="black", font=font)
        request = subjects[name].request(prompt, _NUM_FRAMES)
        conditioning = model.encode(request)
        latents = run_steps(model, request, conditioning)
        frames = model.decode(request, conditioning, latents).frames
        for column, index in enumerate(_SHOWN):
            place = (_GAP_PX + column * (_THUMB_PX + _GAP_PX), top + _CAPTION_PX)
            sheet.paste(_thumb(frames[index]), place)
    path = path or RESULTS / "motion_sheet.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(256, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
    return path


def _thumb(frame_HW3: np.ndarray) -> Image.Image:
    size = (_THUMB_PX, _THUMB_PX)
    return Image.fromarray(frame_HW3).resize(size, Image.Resampling.LANCZOS)
