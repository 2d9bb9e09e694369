"""All clips of a batch on one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO, Protocol

from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

from workers.protocol import Artifact, Job, JobStatus

MAX_CELLS = 400
_CELL = (320, 180)
_CAPTION_PX = 26
_GAP_PX = 8
_MAX_COLUMNS = 6
_BACKGROUND, _EMPTY, _TEXT = (18, 18, 20), (44, 44, 48), (230, 230, 230)


class Opener(Protocol):
    """Where pictures come from."""

    def open(self, path: str) -> BinaryIO:
        """A reader of the bytes at `path`."""
        ...


@dataclass(frozen=True, slots=True)
class Cell:
    """One clip: its caption, and its job where there is one."""

    caption: str
    job: Job | None


def draw_contact_sheet(cells: Sequence[Cell], artifacts: Opener) -> bytes:
    """A PNG with a thumbnail and a name per clip; what is not done shows its state.

    At most 400 clips are drawn.
    """
    cells = cells[:MAX_CELLS]
    num_columns = min(max(math.ceil(math.sqrt(len(cells))), 1), _MAX_COLUMNS)
    num_rows = max(math.ceil(len(cells) / num_columns), 1)
    width, height = _CELL[0] + _GAP_PX, _CELL[1] + _CAPTION_PX + _GAP_PX
    sheet = Image.new(
        "RGB", (num_columns * width + _GAP_PX, num_rows * height + _GAP_PX), _BACKGROUND
    )
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=14)
    for index, cell in enumerate(cells):
        left = _GAP_PX + index % num_columns * width
        top = _GAP_PX + index // num_columns * height
        sheet.paste(_tile(cell, artifacts), (left, top))
        draw.text((left + 2, top + _CELL[1] + 4), _fitted(cell.caption), fill=_TEXT, font=font)
    buffer = BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


def _tile(cell: Cell, artifacts: Opener) -> Image.Image:
    tile = Image.new("RGB", _CELL, _EMPTY)
    picture = _thumbnail(cell.job, artifacts)
    if picture is None:
        state = "deleted" if cell.job is None else cell.job.status.value
        font = ImageFont.load_default(size=18)
        ImageDraw.Draw(tile).text((12, 10), state, fill=_TEXT, font=font)
        return tile
    picture.thumbnail(_CELL, Image.Resampling.LANCZOS)
    tile.paste(picture, ((_CELL[0] - picture.width) // 2, (_CELL[1] - picture.height) // 2))
    return tile


def _thumbnail(job: Job | None, artifacts: Opener) -> Image.Image | None:
    artifact = None if job is None or job.status != JobStatus.SUCCEEDED else _poster(job)
    if artifact is None:
        return None
    try:
        with artifacts.open(artifact.path) as file, Image.open(file) as image:
            return image.convert("RGB")
    except (FileNotFoundError, UnidentifiedImageError, OSError):
        return None  # the tile then says that the job succeeded, without its picture


def _poster(job: Job) -> Artifact | None:
    images = [a for a in job.artifacts if a.media_type.startswith("image/")]
    for word in ("thumb", "poster"):
        for artifact in images:
            if word in artifact.name:
                return artifact
    return images[0] if images else None


def _fitted(caption: str) -> str:
    plain = "".join(char if char.isprintable() else " " for char in caption)
    return plain if len(plain) <= 40 else plain[:39] + "…"
