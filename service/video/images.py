"""Uploaded pictures: looked at before they are believed.

The bytes decide what a file is, never its name or its Content-Type. The size is read from the
header before any pixel is decoded; then the picture is decoded once, so that a truncated file is
refused now and not by a worker later. The original bytes are kept.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import warnings
from dataclasses import dataclass
from io import BytesIO

from PIL import Image, UnidentifiedImageError

from service.errors import BadRequest, TooLarge

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
MAX_ASPECT_RATIO = 8
_ORIENTATION_TAG = 0x0112
_SIDEWAYS = range(5, 9)
_DATA_URL = re.compile(
    r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.IGNORECASE
)
_DECODE_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError, TypeError,
    Image.DecompressionBombError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRules:
    """Bounds of an input picture. Units: bytes, pixels."""

    max_bytes: int
    max_pixels: int
    max_side: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture that decodes; the sides are those after EXIF rotation."""

    data: bytes
    name: str
    media_type: str
    width: int
    height: int


def inspect(data: bytes, *, name: str, rules: ImageRules, param: str = "image") -> Picture:
    """The facts of a picture.

    Raises: BadRequest with code `invalid_image_format`, `image_too_large`, `image_truncated` or
    `invalid_image`; TooLarge for too many bytes.
    """
    if not data:
        raise _bad(param, "is empty (0 bytes); send a PNG, JPEG or WebP picture", "invalid_image")
    if len(data) > rules.max_bytes:
        raise TooLarge(
            f"{param} has {len(data)} bytes; at most {rules.max_bytes} are taken.", param=param
        )
    with _open(data, param) as image:
        _check_size(image.size, rules, param)
        _decode(image, param)
        width, height = _upright_size(image)
        media_type = FORMATS[str(image.format)]
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise _bad(
            param,
            f"is {width}x{height}; its longer side may be at most {MAX_ASPECT_RATIO} times the "
            "shorter one: crop it first",
            "invalid_image",
        )
    return Picture(data=data, name=name, media_type=media_type, width=width, height=height)


def decode_data_url(url: str, *, param: str = "image") -> bytes:
    """The bytes of a `data:` URL with base64 content.

    Raises: BadRequest with code `invalid_image_url`.
    """
    match = _DATA_URL.match(url[:512])
    if match is None or match.group(3) is None:
        raise _bad(param, "is not a data: URL with base64 content", "invalid_image_url")
    try:
        return base64.b64decode(url[match.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad(param, "holds base64 that does not decode", "invalid_image_url") from error


def safe_name(name: str | None) -> str:
    """A file name kept as a label only: its last part, printable, at most 255 characters."""
    last = re.split(r"[/\\]", name or "")[-1]
    kept = "".join(char for char in last if char.isprintable()).strip()
    return kept.encode("utf-8", "ignore").decode()[:255] or "file"


def _open(data: bytes, param: str) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(BytesIO(data), formats=list(FORMATS))
    except Image.DecompressionBombError as error:
        raise _bad(
            param, "has far more pixels than are taken; scale it down", "image_too_large"
        ) from error
    except UnidentifiedImageError as error:
        kind = _guess(data)
        raise _bad(
            param, f"is {kind}; send a PNG, JPEG or WebP picture", "invalid_image_format"
        ) from error
    except _DECODE_ERRORS as error:
        raise _bad(param, f"does not open: {str(error)[:100]}", "invalid_image") from error


def _check_size(size: tuple[int, int], rules: ImageRules, param: str) -> None:
    width, height = size
    if min(size) < 1:
        raise _bad(param, f"is {width}x{height}; it has no pixels", "invalid_image")
    if max(size) > rules.max_side:
        raise _bad(
            param,
            f"is {width}x{height}; a side may have at most {rules.max_side} pixels",
            "image_too_large",
        )
    if width * height > rules.max_pixels:
        raise _bad(
            param,
            f"is {width}x{height}, {width * height} pixels; at most {rules.max_pixels} are taken",
            "image_too_large",
        )


def _decode(image: Image.Image, param: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image.load()
    except _DECODE_ERRORS as error:
        text = str(error)[:100]
        code = "image_truncated" if "truncated" in text.lower() else "invalid_image"
        raise _bad(param, f"is damaged or cut off: {text}", code) from error


def _upright_size(image: Image.Image) -> tuple[int, int]:
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except _DECODE_ERRORS:
        orientation = 1  # unreadable metadata leaves the picture as it is stored
    width, height = image.size
    return (height, width) if orientation in _SIDEWAYS else (width, height)


def _guess(data: bytes) -> str:
    starts = {
        b"GIF8": "a GIF", b"BM": "a BMP", b"II*\0": "a TIFF", b"MM\0*": "a TIFF",
        b"%PDF": "a PDF", b"<svg": "an SVG", b"<?xml": "XML", b"\x1aE\xdf\xa3": "a WebM video",
    }  # fmt: skip
    for start, kind in starts.items():
        if data.startswith(start):
            return kind
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        return "an AVIF or HEIC picture" if brand[:3] in {b"avi", b"hei", b"mif"} else "an MP4"
    return "no picture that is read here"


def _bad(param: str, text: str, code: str) -> BadRequest:
    return BadRequest(f"{param} {text}.", param=param, code=code)
