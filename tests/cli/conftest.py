"""A small service that answers like the real one, for the commands to talk to."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner, Result
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from PIL import Image
from starlette.datastructures import UploadFile

KEY = "sk-test"
CLIP = b"\x00\x00\x00\x18ftypisom" + b"clip" * 64
TERMINAL = {"succeeded", "failed", "cancelled", "dead"}


def picture_bytes(colour: str = "teal") -> bytes:
    """A small PNG."""
    buffer = io.BytesIO()
    Image.new("RGB", (48, 32), colour).save(buffer, "PNG")
    return buffer.getvalue()


@dataclass
class StubState:
    """What the stub knows; tests read and change it."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    shots: dict[str, dict[str, Any]] = field(default_factory=dict)
    uploads: int = 0
    polls_to_finish: int = 2
    failing_prompt: str = "fail please"
    chat_words: tuple[str, ...] = ("Good", " ", "day", ".")
    chat_error: dict[str, Any] | None = None
    seen: list[tuple[str, str]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def add_job(self, body: dict[str, Any], batch_id: str | None = None) -> dict[str, Any]:
        """A queued job made of what was asked for."""
        job_id = f"job_{len(self.jobs):026d}"
        size = body.get("size") or f"{body.get('width', 64)}x{body.get('height', 48)}"
        width, height = (int(side) for side in size.split("x"))
        request = {
            "model": "motion-small", "image": body["image"], "image_name": "picture.png",
            "prompt": body["prompt"], "negative_prompt": "", "seconds": body.get("seconds", 1.0),
            "fps": body.get("fps", 8.0), "width": width, "height": height,
            "fit": body.get("fit", "crop"), "seed": body.get("seed", 7),
            "steps": body.get("steps", 4), "guidance_scale": None, "save_frames": False,
        }  # fmt: skip
        job = {
            "id": job_id, "kind": "image_to_video", "status": "queued", "progress": None,
            "queue_position": 0, "attempt": 0, "created_at": "2026-01-01T00:00:00Z",
            "started_at": None, "finished_at": None, "request": request, "artifacts": [],
            "error": None, "project": body.get("project", ""), "shot": body.get("shot", ""),
            "tags": body.get("tags", []), "priority": 0, "batch_id": batch_id, "_polls": 0,
        }  # fmt: skip
        self.jobs[job_id] = job
        return self.shown(job)

    def find_shot(self, name: str, shot: dict[str, Any]) -> dict[str, Any] | None:
        """The job of an equal shot of the same name, unless it failed."""
        job = self.shots.get(json.dumps([name, shot], sort_keys=True))
        return None if job is None or job["status"] in {"failed", "cancelled"} else job

    def keep_shot(self, name: str, shot: dict[str, Any], batch_id: str) -> dict[str, Any]:
        """A job for a shot."""
        job = self.jobs[self.add_job(shot, batch_id)["id"]]
        self.shots[json.dumps([name, shot], sort_keys=True)] = job
        return job

    def shown(self, job: dict[str, Any]) -> dict[str, Any]:
        """The job without the stub's own notes."""
        return {name: value for name, value in job.items() if not name.startswith("_")}

    def advance(self, job: dict[str, Any]) -> None:
        """One step towards the end, taken each time that somebody looks."""
        if job["status"] in TERMINAL:
            return
        job["_polls"] += 1
        job |= {"status": "running", "attempt": 1, "started_at": "2026-01-01T00:00:01Z"}
        share = min(job["_polls"] / max(self.polls_to_finish, 1), 1)
        job["progress"] = {
            "stage": "denoise", "step": job["_polls"], "steps": self.polls_to_finish,
            "percent": 100 * share, "eta_seconds": 1.0,
        }  # fmt: skip
        if share >= 1:
            self.finish(job)

    def finish(self, job: dict[str, Any]) -> None:
        """The end: files, or an error for the prompt that fails."""
        job["finished_at"] = "2026-01-01T00:00:09Z"
        if job["request"]["prompt"] == self.failing_prompt:
            job |= {"status": "failed", "error": {"code": "boom", "message": "it broke"}}
            return
        made = (
            ("motion.mp4", "video/mp4", CLIP),
            ("contact_sheet.png", "image/png", picture_bytes()),
        )
        job |= {"status": "succeeded", "artifacts": [
            {"name": name, "media_type": kind, "bytes": len(data),
             "sha256": hashlib.sha256(data).hexdigest(),
             "url": f"/jobs/{job['id']}/artifacts/{name}?sig=x"}
            for name, kind, data in made
        ]}  # fmt: skip


def failure(status: int, message: str, code: str | None = None) -> JSONResponse:
    """An error in OpenAI's shape."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status)


def make_stub(state: StubState) -> FastAPI:
    """The stub as an app."""
    app = FastAPI()

    @app.middleware("http")
    async def keys(request: Request, call_next: Callable[..., Any]) -> Any:
        path = request.url.path
        state.seen.append((request.method, path))
        is_open = path == "/readyz" or "sig" in request.query_params
        if not is_open and request.headers.get("authorization") != f"Bearer {KEY}":
            return failure(401, "This API key is not known.", "invalid_api_key")
        return await call_next(request)

    add_chat_routes(app, state)
    add_file_routes(app, state)
    add_job_routes(app, state)
    add_batch_routes(app, state)
    return app


def add_chat_routes(app: FastAPI, state: StubState) -> None:
    """Models, readiness and chat."""

    @app.get("/readyz")
    async def ready() -> dict[str, Any]:
        return {"status": "ready", "workers": [], "queue_depth": 0}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": "smol", "role": "llm"}, {"id": "motion-small", "role": "video"}],
        }

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        body = await request.json()
        if state.chat_error:
            return JSONResponse({"error": state.chat_error}, status_code=503)

        async def words() -> AsyncIterator[str]:
            for word in state.chat_words:
                choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
                yield f"data: {json.dumps({'model': body['model'], 'choices': [choice]})}\n\n"
            usage = {"prompt_tokens": 3, "completion_tokens": len(state.chat_words)}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

        return StreamingResponse(words(), media_type="text/event-stream")


def add_file_routes(app: FastAPI, state: StubState) -> None:
    """What goes in and what comes out."""

    @app.get("/v1/files")
    async def files() -> dict[str, Any]:
        known = state.files.items()
        data = [{"id": i, "sha256": hashlib.sha256(d).hexdigest()} for i, d in known]
        return {"object": "list", "data": data, "has_more": False}

    @app.post("/v1/files")
    async def upload(request: Request) -> dict[str, Any]:
        form = await request.form()
        part = form["file"]
        assert isinstance(part, UploadFile)
        data = await part.read()
        file_id = f"file-{hashlib.sha256(data).hexdigest()[:12]}"
        state.files[file_id] = data
        state.uploads += 1
        return {"id": file_id, "object": "file", "bytes": len(data)}

    @app.get("/jobs/{job_id}/artifacts/{name}")
    async def artifact(job_id: str, name: str) -> Response:
        return Response(CLIP if name.endswith(".mp4") else picture_bytes())


def add_job_routes(app: FastAPI, state: StubState) -> None:
    """Jobs and what may be done to them."""

    @app.post("/jobs", status_code=202)
    async def create(request: Request) -> Any:
        body = await request.json()
        if body["image"] not in state.files:
            return failure(400, "The file is not there.", "file_not_found")
        return state.add_job(body)

    @app.get("/jobs")
    async def listing(request: Request) -> dict[str, Any]:
        states = request.query_params.getlist("status")
        data = [job for job in state.jobs.values() if not states or job["status"] in states]
        return {"object": "list", "data": list(map(state.shown, data)), "has_more": False}

    @app.get("/jobs/{job_id}")
    async def show(job_id: str) -> Any:
        if job_id not in state.jobs:
            return failure(404, f"There is no job {job_id}.", "job_not_found")
        state.advance(state.jobs[job_id])
        return state.shown(state.jobs[job_id])

    @app.post("/jobs/{job_id}/{verb}")
    async def act(job_id: str, verb: str) -> Any:
        job = state.jobs[job_id]
        if verb == "cancel" and job["status"] not in TERMINAL:
            job["status"] = "cancelled"
            state.cancelled.append(job_id)
        if verb == "retry":
            job |= {"status": "queued", "_polls": 0, "error": None}
        return state.shown(job)

    @app.delete("/jobs/{job_id}")
    async def remove(job_id: str) -> dict[str, Any]:
        return {"id": state.jobs.pop(job_id)["id"], "deleted": True}


def add_batch_routes(app: FastAPI, state: StubState) -> None:
    """Batches; a shot that was sent before under the same name is not rendered again."""

    @app.post("/batches")
    async def create(request: Request) -> Any:
        body = await request.json()
        for number, shot in enumerate(body["shots"], start=1):
            if shot.get("seconds", 1) > 60:
                text = f"There is 1 problem; nothing was queued.\nline {number}, seconds: too long"
                return failure(400, text, "invalid_shot_list")
        known = [state.find_shot(body["name"], shot) for shot in body["shots"]]
        facts = {
            "id": None, "name": body["name"], "dry_run": body["dry_run"],
            "num_new": known.count(None), "num_reused": len(known) - known.count(None), "shots": [],
        }  # fmt: skip
        if body["dry_run"]:
            return facts
        batch_id = f"batch_{len(state.batches)}"
        jobs = [
            job or state.keep_shot(body["name"], shot, batch_id)
            for job, shot in zip(known, body["shots"], strict=True)
        ]
        state.batches[batch_id] = facts | {"id": batch_id, "shots": jobs}
        return JSONResponse(facts | {"id": batch_id}, status_code=202)

    @app.get("/batches/{batch_id}")
    async def show(batch_id: str) -> dict[str, Any]:
        jobs = state.batches[batch_id]["shots"]
        for job in jobs:
            state.advance(job)
        shots = [
            {"line": i, "shot": job["shot"], "seed": job["request"]["seed"], "job_id": job["id"],
             "job": state.shown(job)}
            for i, job in enumerate(jobs, start=1)
        ]  # fmt: skip
        return state.batches[batch_id] | {"shots": shots}

    @app.get("/batches/{batch_id}/contact_sheet.png")
    async def sheet(batch_id: str) -> Response:
        return Response(picture_bytes(), media_type="image/png")


@dataclass(frozen=True)
class RunningStub:
    """A stub that listens."""

    url: str
    state: StubState


@pytest.fixture
def stub() -> Iterator[RunningStub]:
    """The stub on a free port of the loopback."""
    state = StubState()
    server = uvicorn.Server(uvicorn.Config(make_stub(state), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield RunningStub(f"http://127.0.0.1:{port}", state)
    server.should_exit = True
    thread.join(5)


@pytest.fixture
def lanewise(stub: RunningStub) -> Callable[..., Result]:
    """Runs a command against the stub."""
    from service.cli import main

    def run(*arguments: str, **options: Any) -> Result:
        where = ["--url", stub.url, "--key", KEY]
        return CliRunner().invoke(main, [*arguments, *where], **options)

    return run


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A picture on disk."""
    path = tmp_path / "in put.png"
    path.write_bytes(picture_bytes())
    return path
