"""What holds for every route: keys, errors, bodies, the OpenAPI document, the page."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from gateway_kit import LLM, VIDEO, FakeClient, caller, picture_bytes, publish_workers, render_next
from sqlalchemy.exc import OperationalError

from service.app import create_app
from workers.protocol import WorkerFacts, WorkerState
from workers.settings import Settings
from workers.store import Store

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
HELLO = {"model": LLM, "messages": [{"role": "user", "content": "Hi"}]}


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "Bearer ' OR 1=1--")],
        [("Authorization", "Basic YTpi")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer " + "x" * 20_000)],
        [("Authorization", "sk-x")],
        [("Authorization", "Bearer sk-a"), ("Authorization", "Bearer sk-b")],
        [("Authorization", b"Bearer sk-\xff\xfe")],
    ],
)
async def test_bad_keys_are_401(app: FastAPI, headers: list[Any]) -> None:
    async with caller(app, None) as stranger:
        for path in (
            "/jobs",
            "/v1/models",
            "/v1/files",
            "/batches",
            "/keys",
            "/metrics",
            "/events",
        ):
            answer = await stranger.get(path, headers=headers)
            assert answer.status_code == 401, path
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_scopes_are_kept(app: FastAPI, store: Store) -> None:
    async with caller(app, store.keys.create("chatter", ["chat"])[1]) as chatter:
        assert (await chatter.post(CHAT, json=HELLO)).status_code == 200
        for method, path in (
            ("GET", "/jobs"),
            ("POST", "/jobs"),
            ("GET", "/keys"),
            ("POST", "/batches"),
        ):
            answer = await chatter.request(method, path)
            assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


async def test_admins_make_and_revoke_keys(app: FastAPI, admin_key: str, user_key: str) -> None:
    async with caller(app, admin_key) as admin, caller(app, user_key) as user:
        made = await admin.post("/keys", json={"name": "n", "scopes": ["chat"]})
        key = made.json()
        assert made.status_code == 201
        assert key["secret"].startswith("sk-")
        async with caller(app, key["secret"]) as fresh:
            assert (await fresh.get("/v1/models")).status_code == 200
            assert (await admin.delete(f"/keys/{key['id']}")).json()["revoked_at"]
            assert (await fresh.get("/v1/models")).status_code == 401
        listed = (await admin.get("/keys")).json()["data"]
        assert "secret" not in listed[0]
        mine = next(k for k in listed if k["name"] == "admin")
        assert (await admin.delete(f"/keys/{mine['id']}")).status_code == 400
        assert (await admin.delete("/keys/nobody")).status_code == 404
        assert (
            await admin.post("/keys", json={"name": "n", "scopes": ["root"]})
        ).status_code == 400
        assert (await user.post("/keys", json={"name": "n"})).status_code == 403


async def test_without_auth_everyone_is_local(client: FakeClient, settings: Settings) -> None:
    client.settings = settings.model_copy(update={"auth": "off"})
    async with caller(create_app(client, client.settings), None) as http:
        job = (
            await http.post("/jobs", data={"prompt": "x"}, files={"image": picture_bytes()})
        ).json()
        render_next(client.store)
        artifact = (await http.get(f"/jobs/{job['id']}")).json()["artifacts"][0]
        assert artifact["url"] == f"/jobs/{job['id']}/artifacts/motion.mp4"
        assert (await http.get(artifact["url"])).status_code == 200


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b'{"model": "x", x}', {}, 400),
        (b"[]", {}, 400),
        (b"", {}, 400),
        (b"null", {}, 400),
        (json.dumps(HELLO).encode("utf-16"), {}, 400),
        (b'{"a": "\xff"}', {}, 400),
        (b'{"temperature": NaN}', {}, 400),
        (b'{"temperature": 1e999}', {}, 400),
        (b'{"temperature": -Infinity}', {}, 400),
        (b'{"seed": ' + b"9" * 5000 + b"}", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b'{"a":' * 100_000, {}, 400),
        (json.dumps(HELLO | {"user": "\ud800"}).encode(), {}, 400),
        (json.dumps({"\ud800": 1}).encode(), {}, 400),
        (json.dumps(HELLO).encode(), {"Content-Encoding": "gzip"}, 415),
        (json.dumps(HELLO).encode(), {"Content-Type": "text/plain"}, 415),
        (b" " * (9 * 2**20), {}, 413),
    ],
)
async def test_hostile_json_is_the_callers_fault(
    http: httpx.AsyncClient, content: bytes, headers: dict[str, str], status: int
) -> None:
    for path in (CHAT, "/jobs", "/v1/videos", "/batches"):
        if status == 413 and path != CHAT:
            continue
        answer = await http.post(
            path, content=content, headers={"Content-Type": "application/json"} | headers
        )
        assert answer.status_code == status, (path, answer.text)
        assert answer.json()["error"]["message"]


async def test_huge_bodies_are_413(http: httpx.AsyncClient, app: FastAPI) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b" " * 2**20

    for path in (CHAT, "/jobs", "/v1/files"):
        for headers in (
            {"Content-Type": "application/json"},
            {"Content-Type": "multipart/form-data; boundary=x"},
        ):
            answer = await http.post(path, content=endless(), headers=headers)
            assert answer.status_code in {400, 413, 415}, path
            assert answer.json()["error"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"--x",
        b"--x\r\n\r\n",
        b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nabc',
        b"--x\r\n" + b"A" * 2**20 + b"\r\n\r\n--x--",
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 10_000 + b"--x--",
        b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n1\r\n' * 10
        + b"--x--",
        b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--",
        b"garbage",
        b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n'
        + b"x" * (2 * 2**20)
        + b"\r\n--x--",
        b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\xfe\r\n--x--',
    ],
)
async def test_broken_forms_are_the_callers_fault(http: httpx.AsyncClient, content: bytes) -> None:
    for path in ("/jobs", "/v1/videos", "/v1/files", "/batches"):
        for kind in ("multipart/form-data; boundary=x", "multipart/form-data"):
            answer = await http.post(path, content=content, headers={"Content-Type": kind})
            assert 400 <= answer.status_code < 500, (path, answer.text)
            assert answer.json()["error"]["message"]


async def test_unknown_urls_and_methods(http: httpx.AsyncClient) -> None:
    for method, path in (
        ("POST", "/v1/responses"),
        ("GET", "/v1/nothing"),
        ("POST", "/v1/embeddings"),
    ):
        answer = await http.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
        assert "/v1/chat/completions" in answer.json()["error"]["message"]
    assert (await http.get("/nothing")).json()["error"]["code"] == "not_found"
    wrong = await http.put("/v1/models")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_request_ids(http: httpx.AsyncClient) -> None:
    asked = await http.get("/healthz", headers={"x-request-id": "my-id.1"})
    odd = await http.get("/healthz", headers=[(b"x-request-id", b"a b\xe9" * 50)])
    assert asked.headers["x-request-id"] == "my-id.1"
    assert odd.headers["x-request-id"].startswith("req_")


async def test_bugs_are_a_500_with_the_request_id(
    http: httpx.AsyncClient, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(client.store.jobs, "list", broken)
    answer = await http.get("/jobs")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    assert "bug" not in answer.text


def full_database() -> Exception:
    """What SQLAlchemy raises when SQLite has no room."""
    with sa.create_engine("sqlite://").connect() as conn:
        conn.exec_driver_sql("CREATE TABLE t (x)")
        conn.exec_driver_sql("PRAGMA max_page_count = 3")
        with pytest.raises(OperationalError) as caught:
            conn.exec_driver_sql("INSERT INTO t VALUES (zeroblob(100000))")
    return caught.value


@pytest.mark.parametrize("make", [full_database, lambda: OSError(errno.ENOSPC, "no room")])
async def test_a_full_disk_is_said_plainly(
    http: httpx.AsyncClient, client: FakeClient, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    cause = make()

    def full(*_: object, **__: object) -> None:
        raise cause

    monkeypatch.setattr(client.store.jobs, "list", full)
    answer = await http.get("/jobs")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "storage_full"
    assert "free some room" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"]


# ---------------------------------------------------------------- models and health


async def test_models_show_state_and_limits(http: httpx.AsyncClient) -> None:
    models = {m["id"]: m for m in (await http.get("/v1/models")).json()["data"]}
    assert set(models) == {LLM, VIDEO}
    assert models[LLM]["limits"] == {"max_model_len": 2048, "vocab_size": 1000, "adapters": []}
    assert models[VIDEO]["limits"]["side_multiple"] == 16
    assert (await http.get(f"/v1/models/{VIDEO}")).json() == models[VIDEO]
    assert (await http.get("/v1/models/org%2Fname")).json()["error"]["code"] == "model_not_found"


async def test_models_with_slashes(http: httpx.AsyncClient, store: Store) -> None:
    now = datetime.now(UTC)
    store.workers.publish(
        WorkerFacts(
            id="x",
            role="llm",
            model="org/name",
            state=WorkerState.IDLE,
            started_at=now,
            beat_at=now,
        )
    )
    for path in ("org/name", "org%2Fname"):
        assert (await http.get(f"/v1/models/{path}")).json()["id"] == "org/name"


async def test_readiness_says_what_is_missing(
    app: FastAPI, client: FakeClient, store: Store
) -> None:
    async with caller(app, None) as http:
        assert (await http.get("/readyz")).status_code == 200
        client.has_redis = False
        publish_workers(store, state=WorkerState.LOADING)
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert [entry["what"] for entry in answer.json()["not_ready"]] == [
            "redis",
            "llm worker",
            "video worker",
        ]
        assert answer.json()["workers"][0]["state"] == "loading"
        store.workers.forget("llm-1")
        assert "not started" in (await http.get("/readyz")).text
        old = datetime.now(UTC) - timedelta(minutes=5)
        store.workers.publish(
            WorkerFacts(
                id="llm-1",
                role="llm",
                model=LLM,
                state=WorkerState.IDLE,
                started_at=old,
                beat_at=old,
            )
        )
        assert "lost" in (await http.get("/readyz")).text
        assert (await http.get("/healthz")).json()["status"] == "ok"


async def test_metrics_count_what_happened(
    http: httpx.AsyncClient, app: FastAPI, store: Store
) -> None:
    await http.post("/jobs", data={"prompt": "x"}, files={"image": picture_bytes()})
    await http.post("/jobs", data={"prompt": "x"}, files={"image": picture_bytes()})
    await app.state.gateway.events.poll()
    render_next(store)
    render_next(store, failure="out_of_memory")
    await app.state.gateway.events.poll()
    await http.post(CHAT, json=HELLO)
    text = (await http.get("/metrics")).text
    for line in (
        'lanewise_queue_depth{kind="image_to_video"} 0.0',
        'lanewise_jobs{kind="image_to_video",status="succeeded"} 1.0',
        'lanewise_job_failures_total{code="out_of_memory",kind="image_to_video"} 1.0',
        'lanewise_job_stage_seconds_count{kind="image_to_video",stage="queued"} 2.0',
        f'lanewise_tokens_total{{model="{LLM}",type="completion"}} 2.0',
        'lanewise_http_seconds_count{method="POST",route="/jobs",status="202"} 2.0',
    ):
        assert line in text, line


# ---------------------------------------------------------------- documents and page


async def test_the_openapi_document_declares_errors(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    open_paths = {"/healthz", "/readyz"}
    paths: dict[str, Any] = document["paths"]
    assert set(paths) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/engine/stats",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/videos",
        "/v1/videos/{job_id}",
        "/v1/videos/{job_id}/content",
        "/v1/videos/{job_id}/remix",
        "/v1/files",
        "/v1/files/{file_id}",
        "/v1/files/{file_id}/content",
        "/jobs",
        "/jobs/{job_id}",
        "/jobs/{job_id}/cancel",
        "/jobs/{job_id}/retry",
        "/jobs/{job_id}/events",
        "/events",
        "/jobs/{job_id}/artifacts/{name}",
        "/jobs/{job_id}/image",
        "/batches",
        "/batches/{batch_id}",
        "/batches/{batch_id}/retry",
        "/batches/{batch_id}/contact_sheet.png",
        "/keys",
        "/keys/{key_id}",
        "/healthz",
        "/v1/engine/plan",
        "/readyz",
        "/metrics",
    }
    for path, methods in paths.items():
        for method, operation in methods.items():
            if path in open_paths:
                continue
            assert {"400", "401"} <= set(operation["responses"]), (method, path)
            is_made = path in {"/jobs", "/v1/videos", "/v1/videos/{job_id}/remix"}
            assert ("422" in operation["responses"]) == (is_made and method == "post"), path
            assert operation["security"], (method, path)
            if method == "post" and path.rsplit("/", 1)[1] not in {"cancel", "retry"}:
                assert operation["requestBody"]["content"], path
    assert document["info"]["version"]


async def test_the_page_is_served_with_a_policy(app: FastAPI) -> None:
    async with caller(app, None) as http:
        page = await http.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-cache"
        again = await http.get("/", headers={"If-None-Match": page.headers["etag"]})
        assert again.status_code == 304
        script = await http.get("/app.js")
        assert "javascript" in script.headers["content-type"]
        for path in ("/../app.py", "/%2e%2e/app.py", "/nothing.js"):
            assert (await http.get(path)).status_code == 404


def test_the_gateway_loads_no_model_library() -> None:
    code = (
        "import sys, service.app, service.__main__\n"
        "heavy = {'torch', 'triton', 'transformers', 'diffusers', 'video_engine', 'llm_engine'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
