"""Uploads and downloads: files, artifacts, ranges, names, signed links."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from gateway_kit import CLIP, caller, picture_bytes, render_next
from PIL import Image, ImageFile

from workers.store import Store

pytestmark = pytest.mark.anyio
FILES = "/v1/files"


def header_only_png(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be huge."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def flat_png(side: int) -> bytes:
    buffer = BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def fail_to_decode(_image: ImageFile.ImageFile) -> None:
    raise AssertionError("a picture that is too large was decoded")


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + b"\0" * 6 + b";"


async def upload(
    http: httpx.AsyncClient,
    data: bytes,
    *,
    name: str = "p.png",
    kind: str | None = "image/png",
    purpose: str = "vision",
) -> httpx.Response:
    part: Any = (name, data) if kind is None else (name, data, kind)
    return await http.post(FILES, files={"file": part}, data={"purpose": purpose})


async def submit(http: httpx.AsyncClient, name: str = "p.png") -> str:
    answer = await http.post(
        "/jobs", data={"prompt": "pan"}, files={"image": (name, picture_bytes(), "image/png")}
    )
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


async def test_files_have_openais_shape(http: httpx.AsyncClient) -> None:
    data = picture_bytes()
    made = (await upload(http, data)).json()
    assert (made["object"], made["bytes"], made["filename"]) == ("file", len(data), "p.png")
    assert (made["purpose"], made["width"], made["height"]) == ("vision", 320, 180)
    assert (await upload(http, data)).json()["id"] == made["id"]
    assert (await http.get(FILES)).json()["data"] == [made]
    assert (await http.get(FILES, params={"purpose": "batch"})).json()["data"] == []
    content = await http.get(f"{FILES}/{made['id']}/content")
    assert content.content == data
    assert content.headers["content-type"] == "image/png"
    assert (await http.delete(f"{FILES}/{made['id']}")).json() == {
        "id": made["id"], "object": "file", "deleted": True,
    }  # fmt: skip
    assert (await http.get(f"{FILES}/{made['id']}")).status_code == 404


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_image"),
        (b"this is text", "invalid_image_format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "invalid_image_format"),
        (gif(45240, 45240), "invalid_image_format"),
        (header_only_png(30_000, 30_000), "image_too_large"),
        (header_only_png(100_000, 100_000), "image_too_large"),
        (header_only_png(20_000, 100), "image_too_large"),
        (header_only_png(200, 100), None),
        (flat_png(7000), "image_too_large"),
        (picture_bytes((400, 400), "JPEG")[:2000], None),
        (picture_bytes((400, 400), "WEBP")[:-50], None),
        (picture_bytes((400, 400))[:-300], None),
        (picture_bytes((900, 100)), "invalid_image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, None),
        (b"RIFF\x10\0\0\0WEBPVP8 ", None),
        (b"\xff\xd8\xff\xe0" + b"\0" * 40, None),
    ],
)  # fmt: skip
async def test_bad_pictures_are_refused(
    http: httpx.AsyncClient, data: bytes, code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code == "image_too_large":  # its header is enough: not one pixel may be decoded
        monkeypatch.setattr(ImageFile.ImageFile, "load", fail_to_decode)
    answer = await upload(http, data)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "file"
    if code is not None:
        assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "image/gif", None])
async def test_the_bytes_decide_and_not_the_header(
    http: httpx.AsyncClient, kind: str | None
) -> None:
    assert (await upload(http, picture_bytes(), kind=kind)).status_code == 200


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
async def test_every_pixel_format_is_taken(http: httpx.AsyncClient, mode: str) -> None:
    buffer = BytesIO()
    kind = "JPEG" if mode == "CMYK" else "PNG"
    Image.new("L", (40, 30), 90).convert("I" if mode == "I;16" else mode).convert(mode).save(
        buffer, kind
    )
    assert (await upload(http, buffer.getvalue())).status_code == 200


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/cron.d/x", "x"),
        ("..\\..\\x", "x"),
        ("CON", "CON"),
        ("犬.png", "犬.png"),
        ("a" * 4000, "a" * 255),
        ("safe\u202egnp.exe", "safegnp.exe"),
        ('報告 🚀 "x".png', '報告 🚀 "x".png'),
    ],
)
async def test_names_are_labels_only(http: httpx.AsyncClient, name: str, kept: str) -> None:
    made = (await upload(http, picture_bytes(), name=name)).json()
    assert made["filename"] == kept.replace('"', "%22") or made["filename"] == kept
    content = await http.get(f"{FILES}/{made['id']}/content")
    assert content.status_code == 200
    assert content.headers["content-disposition"].isascii()


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({}, "purpose"), ({"purpose": "evals"}, "purpose"),
        ({"purpose": "vision", "expires_after[seconds]": "3600"}, "expires_after"),
    ],
)  # fmt: skip
async def test_bad_forms_are_named(
    http: httpx.AsyncClient, form: dict[str, str], param: str
) -> None:
    answer = await http.post(FILES, files={"file": ("p.png", picture_bytes())}, data=form)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_other_purposes_keep_any_bytes(http: httpx.AsyncClient) -> None:
    made = (await upload(http, b"{}\n", name="lines.jsonl", purpose="batch")).json()
    content = await http.get(f"{FILES}/{made['id']}/content")
    assert content.content == b"{}\n"
    assert content.headers["content-disposition"].startswith("attachment")
    assert (await upload(http, b"", purpose="batch")).status_code == 400


async def test_a_picture_of_any_purpose_can_start_a_clip(http: httpx.AsyncClient) -> None:
    good = (await upload(http, picture_bytes(), purpose="user_data")).json()["id"]
    bad = (await upload(http, b"text", purpose="user_data")).json()["id"]
    assert (await http.post("/jobs", json={"image": good, "prompt": "x"})).status_code == 202
    answer = await http.post("/jobs", json={"image": bad, "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_image_format")


async def test_uploads_are_bounded(http: httpx.AsyncClient, app: FastAPI) -> None:
    gateway = app.state.gateway
    object.__setattr__(
        gateway, "settings", gateway.settings.model_copy(update={"max_upload_bytes": 100})
    )
    answer = await upload(http, picture_bytes())
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


async def test_artifacts_are_served_in_ranges(http: httpx.AsyncClient, store: Store) -> None:
    job_id = await submit(http)
    render_next(store)
    job = (await http.get(f"/jobs/{job_id}")).json()
    path = f"/jobs/{job_id}/artifacts/motion.mp4"
    whole = await http.get(path)
    etag = whole.headers["etag"]
    assert whole.content == CLIP
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["content-type"] == "video/mp4"
    assert etag == f'"{job["artifacts"][0]["sha256"]}"'

    async def ranged(value: str, **more: str) -> httpx.Response:
        return await http.get(path, headers={"Range": value, **more})

    first = await ranged("bytes=0-9")
    assert (first.status_code, first.content) == (206, CLIP[:10])
    assert first.headers["content-range"] == f"bytes 0-9/{len(CLIP)}"
    assert (await ranged("bytes=-5")).content == CLIP[-5:]
    assert (await ranged(f"bytes={len(CLIP) - 3}-")).content == CLIP[-3:]
    assert (await ranged("bytes=5-99999999")).content == CLIP[5:]
    beyond = await ranged(f"bytes={len(CLIP)}-")
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(CLIP)}")
    for ignored in ("bytes=0-1,3-4", "lines=1-2", "bytes=x"):
        assert (await ranged(ignored)).status_code == 200
    assert (await ranged("bytes=0-9", **{"If-Range": '"other"'})).status_code == 200
    assert (await http.get(path, headers={"If-None-Match": etag})).status_code == 304
    head = await http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(CLIP))
    assert (await http.get(f"/jobs/{job_id}/artifacts/nothing")).status_code == 404
    assert (await http.get(f"/jobs/{job_id}/image")).content == picture_bytes()


async def test_signed_links_open_one_path(
    http: httpx.AsyncClient, app: FastAPI, store: Store
) -> None:
    job_id = await submit(http, name='報告 🚀 "x".png')
    render_next(store)
    artifacts = (await http.get(f"/jobs/{job_id}")).json()["artifacts"]
    async with caller(app, None) as stranger:
        for artifact in artifacts:
            answer = await stranger.get(artifact["url"])
            assert answer.status_code == 200, artifact["url"]
            assert len(answer.content) == artifact["bytes"]
        odd = await stranger.get(artifacts[3]["url"])
        assert "filename*=utf-8''" in odd.headers["content-disposition"]
        url = artifacts[0]["url"]
        exp = url.partition("exp=")[2].partition("&")[0]
        for altered in (
            url.replace(f"exp={exp}", f"exp={int(exp) + 60}"),
            url.replace(f"exp={exp}", "exp=x"),
            url.replace("motion.mp4", "thumbnail.webp"),
            url[:-1] + ("0" if url[-1] != "0" else "1"),
            url.replace("kid=", "kid=x"),
        ):
            assert (await stranger.get(altered)).status_code == 403
        assert (await stranger.get(url.partition("?")[0])).status_code == 401
        query = url.partition("?")[2]
        assert (await stranger.get(f"/jobs/{job_id}?{query}")).status_code == 401
