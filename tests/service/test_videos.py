"""/v1/videos: OpenAI's view of the jobs."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from gateway_kit import CLIP, VIDEO, picture_bytes, render_next

from workers.store import Store

pytestmark = pytest.mark.anyio
VIDEOS = "/v1/videos"


async def create(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    files = {"input_reference": ("p.png", picture_bytes(), "image/png")}
    return await http.post(VIDEOS, data={"prompt": "pan left"} | fields, files=files)


async def test_a_video_from_creation_to_deletion(http: httpx.AsyncClient, store: Store) -> None:
    answer = await create(http, seconds="4", size="1280x720", model=VIDEO)
    video = answer.json()
    assert answer.status_code == 200, video
    assert answer.headers["openai-poll-after-ms"]
    assert (video["object"], video["status"], video["progress"]) == ("video", "queued", 0)
    assert (video["seconds"], video["size"], video["error"]) == ("4", "1280x720", None)
    path = f"{VIDEOS}/{video['id']}"
    early = await http.get(f"{path}/content")
    assert (early.status_code, early.json()["error"]["code"]) == (404, "video_not_ready")
    render_next(store)
    done = (await http.get(path)).json()
    assert (done["status"], done["progress"]) == ("completed", 100)
    assert done["completed_at"] >= done["created_at"]
    assert (
        await http.get(f"{path}/content", headers={"Accept": "application/binary"})
    ).content == CLIP
    thumbnail = await http.get(f"{path}/content", params={"variant": "thumbnail"})
    assert thumbnail.headers["content-type"] == "image/webp"
    assert (await http.get(f"{path}/content?variant=spritesheet")).headers[
        "content-type"
    ] == "image/png"
    assert (await http.get(f"{path}/content?variant=other")).status_code == 400
    assert [v["id"] for v in (await http.get(VIDEOS)).json()["data"]] == [video["id"]]
    assert (await http.delete(path)).json() == {
        "id": video["id"], "object": "video.deleted", "deleted": True,
    }  # fmt: skip
    assert (await http.get(path)).status_code == 404


async def test_cancelled_and_failed_count_as_failed(http: httpx.AsyncClient, store: Store) -> None:
    cancelled = (await create(http)).json()["id"]
    await http.post(f"/jobs/{cancelled}/cancel")
    failed = (await create(http)).json()["id"]
    render_next(store, failure="out_of_memory")
    for video_id, code in ((cancelled, "cancelled"), (failed, "out_of_memory")):
        video = (await http.get(f"{VIDEOS}/{video_id}")).json()
        assert (video["status"], video["error"]["code"]) == ("failed", code)
        assert (await http.get(f"{VIDEOS}/{video_id}/content")).status_code == 404


async def test_extras_of_other_servers(http: httpx.AsyncClient) -> None:
    reference = "data:image/png;base64," + base64.b64encode(picture_bytes()).decode()
    body = {
        "prompt": "x", "input_reference": {"image_url": reference}, "width": 128, "height": 64,
        "num_frames": 24, "fps": 12, "num_inference_steps": 7, "guidance_scale": 2.5, "seed": 9,
        "negative_prompt": "blur", "unknown_extra": True,
    }  # fmt: skip
    video = (await http.post(VIDEOS, json=body)).json()
    request = (await http.get(f"/jobs/{video['id']}")).json()["request"]
    assert (video["size"], video["seconds"]) == ("128x64", "2")
    assert (request["steps"], request["guidance_scale"], request["seed"]) == (7, 2.5, 9)
    assert request["negative_prompt"] == "blur"
    by_id = {"prompt": "x", "input_reference": {"file_id": request["image"]}}
    assert (await http.post(VIDEOS, json=by_id)).status_code == 200
    as_form = {"prompt": "x", "input_reference[file_id]": request["image"]}
    empty = {"ignored": (None, "1")}
    assert (await http.post(VIDEOS, data=as_form, files=empty)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seconds": "-4"}, "seconds"),
        ({"size": "1x1"}, "size"),
        ({"prompt": ""}, "prompt"),
        ({"model": "sora-2"}, "model"),
        ({"seed": "x"}, "seed"),
        ({"num_frames": "100000"}, "seconds"),
    ],
)
async def test_bad_fields_are_named(
    http: httpx.AsyncClient, fields: dict[str, str], param: str
) -> None:
    answer = await create(http, **fields)
    assert answer.status_code in {400, 404}
    assert answer.json()["error"]["param"] == param


async def test_the_picture_is_needed(http: httpx.AsyncClient) -> None:
    for body in (
        {"prompt": "x"},
        {"prompt": "x", "input_reference": 5},
        {"prompt": "x", "input_reference": {}},
    ):
        answer = await http.post(VIDEOS, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_reference")


async def test_a_remix_keeps_all_but_the_words(http: httpx.AsyncClient) -> None:
    source = (await create(http, seed="5")).json()
    headers = {"Idempotency-Key": "r"}
    first, again = [
        await http.post(f"{VIDEOS}/{source['id']}/remix", json={"prompt": "zoom"}, headers=headers)
        for _ in range(2)
    ]
    remix = first.json()
    assert (remix["remixed_from_video_id"], remix["prompt"]) == (source["id"], "zoom")
    assert again.json()["id"] == remix["id"]
    assert again.headers["idempotency-replayed"] == "true"
    jobs = [(await http.get(f"/jobs/{v['id']}")).json()["request"] for v in (source, remix)]
    assert {**jobs[0], "prompt": "zoom"} == jobs[1]
    blank = await http.post(f"{VIDEOS}/{source['id']}/remix", json={"prompt": " "})
    assert (blank.status_code, blank.json()["error"]["param"]) == (400, "prompt")
    assert (await http.post(f"{VIDEOS}/job_x/remix", json={"prompt": "x"})).status_code == 404


@pytest.mark.parametrize(
    "path", ["..%2f..%2fetc%2fpasswd/content", "%00", "%00/content", "edits", "a/b/c"]
)
async def test_odd_paths_are_404(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(f"{VIDEOS}/{path}")).status_code == 404
