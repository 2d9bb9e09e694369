"""The pieces of a gateway under test: the real store, a scripted model, no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import httpx
from fastapi import FastAPI
from PIL import Image

from workers.chat.stream import ChatTiming
from workers.client import Client
from workers.protocol import (
    Artifact,
    ChatDelta,
    ChatDone,
    ChatEvent,
    ChatRequest,
    Job,
    JobError,
    LLMLimits,
    VideoLimits,
    WorkerFacts,
    WorkerState,
)
from workers.settings import Settings
from workers.store import Store
from workers.store.artifacts import job_path
from workers.store.values import Failed, Succeeded

LLM = "tiny-llm"
VIDEO = "tiny-video"
LIMITS = VideoLimits(
    min_side=64, max_side=2048, side_multiple=16, max_area=1280 * 720, default_area=512 * 288,
    min_frames=9, max_frames=121, frame_step=4, frame_offset=1, default_fps=16, min_fps=8,
    max_fps=60, default_seconds=2, default_steps=12, min_steps=1, max_steps=50,
    max_prompt_chars=400, default_guidance_scale=3.0, has_negative_prompt=True,
)  # fmt: skip

Script = list[ChatEvent | float | Exception]


class FakeClient(Client):
    """The real client, but jobs are not sent anywhere and chat events are scripted.

    A number in the script is a pause in seconds; an exception is raised.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        super().__init__(settings, store, app=None, timing=ChatTiming())  # type: ignore[arg-type]
        self.script: Script = words("Hello", " world")
        self.sent: list[str] = []
        self.requests: list[ChatRequest] = []
        self.closed: list[str] = []
        self.has_redis = True

    def send_job(self, job: Job) -> bool:
        self.sent.append(job.id)
        return True

    async def run_chat(
        self, request: ChatRequest, deliver: Callable[[Sequence[ChatEvent]], None]
    ) -> None:
        request.model_dump_json()  # what cannot be sent must have been refused
        self.requests.append(request)
        is_over = False
        try:
            for step in self.script:
                if isinstance(step, int | float):
                    await asyncio.sleep(step)
                elif isinstance(step, Exception):
                    raise step
                else:
                    is_over = step.type != "delta"
                    deliver([step])
        finally:
            if not is_over:
                self.closed.append(request.id)

    def redis_ok(self) -> bool:
        return self.has_redis

    def close(self) -> None:
        self.store.close()


def words(*texts: str, n: int = 1, finish: str = "stop") -> Script:
    """A script in which every choice says the same."""
    events: Script = [
        ChatDelta(index=index, text=text, num_tokens=1) for text in texts for index in range(n)
    ]
    events += [
        ChatDelta(index=index, text="", num_tokens=0, finish_reason=finish)  # type: ignore[arg-type]
        for index in range(n)
    ]
    done = ChatDone(prompt_tokens=7, completion_tokens=len(texts) * n, cached_tokens=2)
    return [*events, done]


def publish_workers(store: Store, *, state: WorkerState = WorkerState.IDLE) -> None:
    """Both models' workers, heard of just now."""
    now = datetime.now(UTC)
    common: dict[str, Any] = {"state": state, "started_at": now, "beat_at": now}
    llm = LLMLimits(max_model_len=2048, vocab_size=1000)
    store.workers.publish(WorkerFacts(id="llm-1", role="llm", model=LLM, llm=llm, **common))
    store.workers.publish(
        WorkerFacts(id="video-1", role="video", model=VIDEO, video=LIMITS, **common)
    )


def picture_bytes(size: tuple[int, int] = (320, 180), kind: str = "PNG", **options: Any) -> bytes:
    """A small picture that is not one flat colour."""
    image = Image.linear_gradient("L").resize(size).convert("RGB")
    buffer = BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def caller(app: FastAPI, key: str | None) -> httpx.AsyncClient:
    """An HTTP client over the app itself, without sockets."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)


CLIP = b"\x00\x00\x00\x18ftypisom" + bytes(range(256)) * 40


def render_next(store: Store, *, failure: str = "") -> str:
    """Do what a worker does with the next job: finish it with three files, or fail it."""
    claim = store.jobs.claim(VIDEO, "worker", 30)
    assert claim is not None
    if failure:
        assert store.jobs.finish(claim, Failed(JobError(code=failure, message="it broke")))
        return claim.job_id
    files = {
        "motion.mp4": ("video/mp4", CLIP),
        "thumbnail.webp": ("image/webp", picture_bytes((64, 36), "WEBP")),
        "contact_sheet.png": ("image/png", picture_bytes((128, 72))),
        '報告 🚀 "x".json': ("application/json", b"{}"),
    }
    artifacts: list[Artifact] = []
    for name, (media_type, data) in files.items():
        path = job_path(claim.job_id, claim.attempt, name)
        kept = store.artifacts.write_bytes(data, path)
        artifacts.append(
            Artifact(
                name=name, media_type=media_type, bytes=kept.bytes, sha256=kept.sha256, path=path
            )
        )
    assert store.jobs.finish(claim, Succeeded(artifacts))
    return claim.job_id
