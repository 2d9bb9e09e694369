"""Bytes from the artifact store as a response: whole, a range, or nothing new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Protocol
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from service.errors import NotFound
from workers.store import ArtifactStore

_CHUNK_BYTES = 256 * 2**10
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE)
_SHOWN_INLINE = ("video/", "image/png", "image/jpeg", "image/webp", "application/json")


class Blob(Protocol):
    """A complete file of the store: an artifact, or an uploaded file.

    Its hash is its ETag, since its path never changes content.
    """

    @property
    def path(self) -> str:
        """Its place in the store."""
        ...

    @property
    def name(self) -> str:
        """What it is called where it is saved."""
        ...

    @property
    def media_type(self) -> str:
        """Its Content-Type."""
        ...

    @property
    def bytes(self) -> int:
        """Its size."""
        ...

    @property
    def sha256(self) -> str:
        """The hash of its content, in hex."""
        ...


def blob_response(request: Request, artifacts: ArtifactStore, blob: Blob) -> Response:
    """200, 206, 304 or 416 by the request's headers; HEAD sends no body.

    Raises: NotFound when the bytes are gone from the store.
    """
    headers = _headers(blob)
    if _matches(request.headers.get("if-none-match"), headers["etag"]):
        return Response(status_code=304, headers=headers)
    start, stop = 0, blob.bytes
    wanted = _wanted_range(request, headers["etag"])
    if wanted is not None:
        span = _span(wanted, blob.bytes)
        if span is None:
            headers["content-range"] = f"bytes */{blob.bytes}"
            return Response(status_code=416, headers=headers)
        start, stop = span
        headers["content-range"] = f"bytes {start}-{stop - 1}/{blob.bytes}"
    headers["content-length"] = str(stop - start)
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=blob.media_type)
    try:
        source = artifacts.open(blob.path)
    except FileNotFoundError as error:
        raise NotFound(f"The bytes of {blob.name} are gone from the store.") from error
    return StreamingResponse(
        _read(source, start, stop), status_code=status, headers=headers, media_type=blob.media_type
    )


def content_disposition(name: str, media_type: str) -> str:
    """The header value: names of any alphabet, by RFC 5987."""
    kind = "inline" if media_type.startswith(_SHOWN_INLINE) else "attachment"
    plain = re.sub(r'[^ -~]|["\\;%]', "_", name)
    if plain == name:
        return f'{kind}; filename="{name}"'
    return f"{kind}; filename=\"{plain}\"; filename*=utf-8''{quote(name, safe='')}"


def _headers(blob: Blob) -> dict[str, str]:
    return {
        "accept-ranges": "bytes",
        "etag": f'"{blob.sha256}"',
        "cache-control": "private, max-age=3600",
        "content-disposition": content_disposition(blob.name, blob.media_type),
        "content-security-policy": "sandbox; default-src 'none'",
    }


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags


def _wanted_range(request: Request, etag: str) -> re.Match[str] | None:
    """The one range asked for. Several ranges, other units and stale ones mean the whole."""
    header = request.headers.get("range")
    if header is None or request.headers.get("if-range", etag) != etag:
        return None
    match = _RANGE.fullmatch(header.replace(" ", ""))
    return match if match is not None and (match.group(1) or match.group(2)) else None


def _span(wanted: re.Match[str], size: int) -> tuple[int, int] | None:
    first, last = wanted.groups()
    if not first:  # the last so many bytes
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
    return (start, stop) if start < stop else None


def _read(source: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    with source:
        source.seek(start)
        left = stop - start
        while left > 0 and (chunk := source.read(min(_CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk
