"""Bad input gets a 4xx that names the field and the bound, and the next request works."""

import io
import struct
import zlib

import httpx
import pytest
from PIL import Image

pytestmark = pytest.mark.slow


def bytes_of(image, form="PNG"):
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def header_only_png(width, height):
    """A PNG of a few bytes that claims to be huge."""

    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


GOOD = bytes_of(Image.new("RGB", (160, 120), "teal"))
TRUNCATED = bytes_of(Image.effect_noise((200, 200), 80).convert("RGB"), "JPEG")[:3000]


@pytest.mark.parametrize(
    ("image", "fields", "param"),
    [
        (b"", {}, "image"),
        (b"this is text", {}, "image"),
        (TRUNCATED, {}, "image"),
        (header_only_png(30_000, 30_000), {}, "image"),
        (GOOD, {"prompt": "word " * 5000}, "prompt"),
        (GOOD, {"model": "no-such-model"}, "model"),
        (GOOD, {"kind": "text_to_opera"}, "kind"),
        (GOOD, {"fit": "stretch"}, "fit"),
        (GOOD, {"width": "-64", "height": "64"}, "width"),
        (GOOD, {"size": "12by12"}, "size"),
        (GOOD, {"size": "99999x64"}, "size"),
        (GOOD, {"seconds": "-1"}, "seconds"),
        (GOOD, {"seconds": "nan"}, "seconds"),
        (GOOD, {"fps": "100000"}, "fps"),
        (GOOD, {"steps": "0"}, "steps"),
        (GOOD, {"seed": "many"}, "seed"),
        (GOOD, {"priority": "1e9"}, "priority"),
    ],
)
def test_a_bad_video_job_is_refused_at_submission(running_service, image, fields, param):
    with running_service.client() as client:
        form = {"prompt": "pan left", "seconds": "0.5"} | fields
        answer = client.post("/jobs", data=form, files={"image": ("p.png", image, "image/png")})
        assert 400 <= answer.status_code < 500, answer.text
        error = answer.json()["error"]
        assert error["param"] == param, error
        assert error["message"]
        good = running_service.submit(client, size="64x64", seconds=0.2)
        assert running_service.wait_for(client, good["id"])["status"] == "succeeded"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 10_000}, "n"),
        ({"top_logprobs": 10**6, "logprobs": True}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "bot", "content": "hi"}]}, "messages"),
        ({"model": "no-such-model"}, "model"),
    ],
)
def test_a_bad_chat_is_refused_and_the_next_works(running_service, fields, param):
    asked = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
    }
    with running_service.client() as client:
        answer = client.post("/v1/chat/completions", json=asked | fields)
        assert 400 <= answer.status_code < 500, answer.text
        assert str(answer.json()["error"]["param"]).startswith(param)
        assert client.post("/v1/chat/completions", json=asked).status_code == 200


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer sk-wrong"}, {"Authorization": "x"}]
)
def test_no_key_and_wrong_key_are_401(running_service, header):
    answer = httpx.get(f"{running_service.url}/jobs", headers=header)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
