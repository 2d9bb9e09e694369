"""Still pictures of a clip: contact sheet, thumbnail, numbered frames."""

# F frames, H height, W width

from __future__ import annotations

import io
import zipfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from video_engine.stop import StopCheck, never, stop_if

if TYPE_CHECKING:
    from video_engine.types import Clip

SHEET_COLUMNS = 4
SHEET_MAX_TILES = 12
TILE_SIDE = 320
THUMBNAIL_SIDE = 512
FIRST_FRAME_NUMBER = 1001
_GAP = 8
_CAPTION_HEIGHT = 20
_BACKGROUND = (24, 24, 24)
_INK = (235, 235, 235)
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def write_contact_sheet(clip: Clip, fps: Fraction, path: Path) -> None:
    """Up to twelve evenly spaced frames, first and last included, each with its time code."""
    indices = spaced_indices(len(clip.frames), SHEET_MAX_TILES)
    tiles = [_tile(clip.frames[index]) for index in indices]
    tile_width, tile_height = tiles[0].size
    columns = min(SHEET_COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    cell_width, cell_height = tile_width + _GAP, tile_height + _CAPTION_HEIGHT + _GAP
    size = (columns * cell_width + _GAP, rows * cell_height + _GAP)
    sheet = Image.new("RGB", size, _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for place, (index, tile) in enumerate(zip(indices, tiles, strict=True)):
        left = _GAP + place % columns * cell_width
        top = _GAP + place // columns * cell_height
        sheet.paste(tile, (left, top))
        draw.text((left, top + tile_height + 4), timecode(index, fps), fill=_INK)
    sheet.save(path, format="PNG")


def write_thumbnail(clip: Clip, path: Path) -> None:
    """The first frame as WebP, its longer side at most 512 pixels."""
    image = Image.fromarray(clip.frames[0])
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    image.save(path, format="WEBP", quality=85)


def write_frames_zip(clip: Clip, stem: str, path: Path, *, should_stop: StopCheck = never) -> None:
    """Every frame as PNG, `frames/STEM.1001.png` first, in an uncompressed archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for index, frame_HWC in enumerate(clip.frames):
            stop_if(should_stop, f"while saving frame {index} of {len(clip.frames)}")
            png = io.BytesIO()
            Image.fromarray(frame_HWC).save(png, format="PNG")
            name = f"frames/{stem}.{FIRST_FRAME_NUMBER + index:04d}.png"
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), png.getvalue())


def timecode(index: int, fps: Fraction) -> str:
    """Where frame `index` starts, and its number: "0:01.250 #30"."""
    milliseconds = round(1000 * index / fps)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}:{rest // 1000:02d}.{rest % 1000:03d} #{index}"


def spaced_indices(num_frames: int, most: int) -> list[int]:
    """At most `most` evenly spaced frame numbers, without repeats, from the first to the last."""
    count = min(num_frames, most)
    return [int(index) for index in np.linspace(0, num_frames - 1, count).round()]


def _tile(frame_HWC: np.ndarray) -> Image.Image:
    image = Image.fromarray(frame_HWC)
    image.thumbnail((TILE_SIDE, TILE_SIDE), Image.Resampling.LANCZOS)
    return image
