"""Jobs over HTTP: submit, list, cancel, retry, delete."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from gateway_kit import LIMITS, VIDEO, FakeClient, caller, picture_bytes

from workers.protocol import JobError, JobStatus
from workers.store import Store
from workers.store.values import Failed

pytestmark = pytest.mark.anyio
FIELDS = {
    "id", "kind", "status", "progress", "queue_position", "attempt", "created_at", "started_at",
    "finished_at", "request", "artifacts", "error", "project", "shot", "tags", "priority",
    "batch_id",
}  # fmt: skip


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


async def submit(
    http: httpx.AsyncClient, headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    """A job from a form; `picture` replaces the picture."""
    picture = more.pop("picture", picture_bytes())
    form = {"prompt": "slow zoom in"} | {name: str(value) for name, value in more.items()}
    return await http.post(
        "/jobs", data=form, files={"image": ("p.png", picture, "image/png")}, headers=headers
    )


async def test_a_form_makes_a_job(http: httpx.AsyncClient, client: FakeClient) -> None:
    answer = await submit(http, tags="a, b", project="film", shot="010", priority=3)
    job = answer.json()
    assert answer.status_code == 202
    assert set(job) == FIELDS
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert (job["status"], job["queue_position"], job["attempt"]) == ("queued", 0, 0)
    assert (job["project"], job["shot"], job["tags"], job["priority"]) == (
        "film",
        "010",
        ["a", "b"],
        3,
    )
    request = job["request"]
    assert (request["model"], request["fps"], request["seconds"], request["steps"]) == (
        VIDEO,
        16,
        2,
        12,
    )
    assert (request["guidance_scale"], request["image_name"]) == (3.0, "p.png")
    assert 0 <= request["seed"] < 2**31
    assert client.sent == [job["id"]]
    assert (await http.get(f"/jobs/{job['id']}")).json() == job


async def test_json_takes_file_ids_and_data_urls(http: httpx.AsyncClient) -> None:
    first = await http.post(
        "/jobs", json={"image": data_url(picture_bytes()), "prompt": "pan", "seed": 3}
    )
    file_id = first.json()["request"]["image"]
    second = await http.post("/jobs", json={"image": file_id, "prompt": "pan", "seed": 3})
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["request"] == second.json()["request"]
    assert first.json()["id"] != second.json()["id"]


@pytest.mark.parametrize(
    "size", [(320, 180), (1000, 1000), (300, 2000), (4000, 600), (64, 64), (1, 1)]
)
async def test_the_default_size_keeps_the_proportions(
    http: httpx.AsyncClient, size: tuple[int, int]
) -> None:
    request = (await submit(http, picture=picture_bytes(size))).json()["request"]
    width, height = request["width"], request["height"]
    assert width % 16 == height % 16 == 0
    assert width * height <= LIMITS.max_area
    assert 0.8 < (width / height) / (size[0] / size[1]) < 1.25


async def test_exif_rotation_turns_the_size(http: httpx.AsyncClient) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    request = (await submit(http, picture=picture_bytes((320, 180), "JPEG", exif=exif))).json()[
        "request"
    ]
    assert request["width"] < request["height"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": "w" * 401}, "prompt", "400"),
        ({"kind": "text_to_opera"}, "kind", "image_to_video"),
        ({"fit": "stretch"}, "fit", "crop"),
        ({"width": -64, "height": 64}, "width", "use 64"),
        ({"width": 100, "height": 64}, "width", "96 or 112"),
        ({"width": 128}, "height", "missing"),
        ({"size": "12by12"}, "size", "WIDTHxHEIGHT"),
        ({"size": "99999x64"}, "size", "2048"),
        ({"size": "100x64"}, "size", "96 or 112"),
        ({"size": "2048x2048"}, "size", "921600"),
        ({"size": "128x64", "width": 64, "height": 64}, "size", "differ"),
        ({"seconds": -1}, "seconds", "0.562"),
        ({"seconds": "nan"}, "seconds", "finite"),
        ({"seconds": "1e999"}, "seconds", "finite"),
        ({"seconds": 100}, "seconds", "7.56"),
        ({"fps": 100_000}, "fps", "use 60"),
        ({"steps": 0}, "steps", "use 1"),
        ({"steps": "2.5"}, "steps", "integer"),
        ({"seed": "many"}, "seed", "integer"),
        ({"seed": -1}, "seed", "use 0"),
        ({"seed": 2**63}, "seed", "outside"),
        ({"guidance_scale": 99}, "guidance_scale", "use 30"),
        ({"priority": "1e9"}, "priority", "integer"),
        ({"priority": 101}, "priority", "100"),
        ({"project": "x" * 129}, "project", "128"),
        ({"tags": "remix-of:job_1"}, "tags", "set by the service"),
        ({"webhook_url": "ftp://example.com/x"}, "webhook_url", "https"),
        ({"webhok_url": "https://example.com"}, "webhok_url", "not permitted"),
        ({"prompt": "a\0b"}, "prompt", "NUL"),
        ({"model": "nobody"}, "model", VIDEO),
    ],
)
async def test_bad_fields_are_named(
    http: httpx.AsyncClient, client: FakeClient, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = await submit(http, **fields)
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400), error
    assert error["param"] == param
    assert words in error["message"]
    assert client.sent == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "gopher://x.org/", "http://user@127.0.0.1#@example.com",
        "https://user:pw@example.com/", "https://127.0.0.1/", "https://[::1]/", "https://[::ffff:10.0.0.1]/",
        "https://0x7f.1/", "https://2130706433/", "https://localhost./", "https://a.internal/",
        "https://example.com:6379/", "https:///nohost", "https://exa mple.com/", "http://[", "https://10.1/",
    ],
)  # fmt: skip
async def test_dangerous_webhooks_are_refused(http: httpx.AsyncClient, url: str) -> None:
    answer = await submit(http, webhook_url=url)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "webhook_url"


async def test_a_public_webhook_is_taken(http: httpx.AsyncClient) -> None:
    assert (await submit(http, webhook_url="https://hooks.example.com/x?y=1")).status_code == 202


async def test_missing_and_foreign_pictures(
    http: httpx.AsyncClient, app: FastAPI, store: Store
) -> None:
    missing = await http.post("/jobs", json={"prompt": "pan"})
    unknown = await http.post("/jobs", json={"prompt": "pan", "image": "file-x"})
    address = await http.post("/jobs", json={"prompt": "pan", "image": "http://127.0.0.1/a.png"})
    other = caller(app, store.keys.create("other", ["video"])[1])
    theirs = (await submit(other)).json()["request"]["image"]
    foreign = await http.post("/jobs", json={"prompt": "pan", "image": theirs})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "image")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "image")
    assert address.json()["error"]["code"] == "invalid_image_url"
    assert foreign.status_code == 400
    await other.aclose()


async def test_twenty_posts_with_one_key_make_one_job(
    http: httpx.AsyncClient, client: FakeClient
) -> None:
    headers = {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(*(submit(http, headers) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(client.sent) == 1
    replayed = [answer.headers.get("idempotency-replayed") for answer in answers]
    assert replayed.count("true") == 19


async def test_a_key_with_another_body_is_422(http: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    assert (await submit(http, headers)).status_code == 202
    for change in (
        {"prompt": "other"},
        {"seed": 4},
        {"picture": picture_bytes((64, 64))},
        {"tags": "x"},
    ):
        answer = await submit(http, headers, **change)
        assert answer.status_code == 422
        assert answer.json()["error"]["param"] == "Idempotency-Key"


async def test_a_refused_request_does_not_burn_its_key(http: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    assert (await submit(http, headers, steps=0)).status_code == 400
    assert (await submit(http, headers)).status_code == 202
    assert (await submit(http, {"Idempotency-Key": "k" * 256})).status_code == 400


async def test_a_resent_request_without_key_finds_its_job(http: httpx.AsyncClient) -> None:
    first = await submit(http, {"x-stainless-retry-count": "0"})
    again = await submit(http, {"x-stainless-retry-count": "1"})
    other = await submit(http, {"x-stainless-retry-count": "1"}, prompt="other")
    fresh = await submit(http, {"x-stainless-retry-count": "0"})
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["x-duplicate-of"] == first.json()["id"]
    assert len({answer.json()["id"] for answer in (first, other, fresh)}) == 3


async def test_a_full_queue_is_429(http: httpx.AsyncClient, client: FakeClient) -> None:
    client.settings = client.settings.model_copy(update={"max_queued": 1})
    assert (await submit(http)).status_code == 202
    answer = await submit(http)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "queue_full"
    assert "retry-after" in answer.headers


async def test_limits_outlive_the_worker(http: httpx.AsyncClient, store: Store) -> None:
    store.workers.forget("video-1")
    answer = await submit(http)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_worker_for_model"
    assert "retry-after" in answer.headers


async def test_lists_filter_and_page(http: httpx.AsyncClient) -> None:
    ids = [(await submit(http, project=f"p{i % 2}", tags=f"t{i}")).json()["id"] for i in range(5)]
    await http.post(f"/jobs/{ids[0]}/cancel")

    async def listed(**query: Any) -> list[str]:
        return [job["id"] for job in (await http.get("/jobs", params=query)).json()["data"]]

    page = (await http.get("/jobs", params={"limit": 2, "order": "asc"})).json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[1], True)
    assert await listed(limit=2, order="asc", after=ids[1]) == ids[2:4]
    assert await listed() == ids[::-1]
    assert await listed(project="p1", order="asc") == [ids[1], ids[3]]
    assert await listed(tag="t3") == [ids[3]]
    assert await listed(status="cancelled") == [ids[0]]
    assert await listed(status=["queued", "cancelled"], order="asc") == ids
    assert await listed(batch="none") == await listed(model="none") == []


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "status=done", "limit=999999"])
async def test_bad_queries_are_named(http: httpx.AsyncClient, query: str) -> None:
    answer = await http.get(f"/jobs?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(query.partition("=")[0])


async def test_cancel_retry_delete(
    http: httpx.AsyncClient, client: FakeClient, store: Store
) -> None:
    job_id = (await submit(http)).json()["id"]
    assert (await http.post(f"/jobs/{job_id}/retry")).json()["error"]["code"] == "job_not_retryable"
    assert (await http.post(f"/jobs/{job_id}/cancel")).json()["status"] == "cancelled"
    assert (await http.post(f"/jobs/{job_id}/cancel")).json()["status"] == "cancelled"
    assert (await http.post(f"/jobs/{job_id}/retry")).json()["status"] == "queued"
    claim = store.jobs.claim(VIDEO, "w", 30)
    assert claim is not None
    assert (await http.post(f"/jobs/{job_id}/cancel")).json()["status"] == "cancelling"
    assert store.jobs.finish(claim, Failed(JobError(code="out_of_memory", message="too big")))
    assert (await http.get(f"/jobs/{job_id}")).json()["error"]["code"] == "out_of_memory"
    assert (await http.delete(f"/jobs/{job_id}")).json()["deleted"]
    assert (await http.get(f"/jobs/{job_id}")).status_code == 404
    assert (await http.delete(f"/jobs/{job_id}")).status_code == 404
    assert client.sent == [job_id, job_id]


async def test_other_tenants_jobs_are_404(
    http: httpx.AsyncClient, app: FastAPI, store: Store, admin_key: str
) -> None:
    job_id = (await submit(http)).json()["id"]
    other = caller(app, store.keys.create("other", ["video", "read"])[1])
    admin = caller(app, admin_key)
    for method, path in (
        ("GET", ""),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("DELETE", ""),
        ("GET", "/events"),
    ):
        assert (await other.request(method, f"/jobs/{job_id}{path}")).status_code == 404
    assert (await other.get("/jobs")).json()["data"] == []
    assert (await admin.get(f"/jobs/{job_id}")).status_code == 200
    await other.aclose()
    await admin.aclose()


@pytest.mark.parametrize(
    "job_id", ["%00", "x", "..%2f..%2fetc", "job_" + "0" * 26, "é", "%ed%a0%80", "a" * 300]
)
async def test_odd_ids_are_404(http: httpx.AsyncClient, job_id: str) -> None:
    assert (await http.get(f"/jobs/{job_id}")).status_code in {400, 404}


async def read_events(http: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    """All events of a stream that ends."""
    text = (await http.get(path)).text
    lines = [line for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_events_follow_a_job_to_its_end(http: httpx.AsyncClient, store: Store) -> None:
    job_id = (await submit(http)).json()["id"]
    reading = asyncio.create_task(read_events(http, f"/jobs/{job_id}/events"))
    await asyncio.sleep(0.2)
    claim = store.jobs.claim(VIDEO, "w", 30)
    assert claim is not None
    await asyncio.sleep(0.6)
    store.jobs.finish(claim, Failed(JobError(code="x", message="y")))
    events = await asyncio.wait_for(reading, 15)
    states = [event["status"] for event in events]
    assert states == [s for s in ("queued", "running", "failed") if s in states]
    assert states[-1] == "failed"
    assert set(events[0]) == FIELDS


async def test_events_end_when_the_job_is_deleted(http: httpx.AsyncClient) -> None:
    job_id = (await submit(http)).json()["id"]
    reading = asyncio.create_task(read_events(http, f"/jobs/{job_id}/events"))
    await asyncio.sleep(0.2)
    await http.delete(f"/jobs/{job_id}")
    events = await asyncio.wait_for(reading, 15)
    assert events[-1] == {"id": job_id, "deleted": True}


async def test_the_job_states_are_all_known() -> None:
    assert {status.value for status in JobStatus if status.is_terminal} == {
        "succeeded", "failed", "cancelled", "dead",
    }  # fmt: skip
