"""Workers with scripted engines, run as processes by the tests: `python scripted.py ROLE LOG`.

A video job's prompt and a chat's first message hold JSON that says what to do; see `Script`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from celery.signals import task_prerun

from llm_engine.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    InvalidRequest,
    QueueFull,
    RequestFailed,
)
from llm_engine.types import Finished, GenerationRequest, TextDelta
from video_engine.errors import Interrupted, InvalidVideoRequest
from video_engine.types import (
    Progress,
    Stage,
    VideoLimits,
    VideoRequest,
    VideoResult,
)
from workers.chat.stream import ChatTiming
from workers.chat.stream_interval import StreamInterval
from workers.chat.translation import EngineItem
from workers.processes import llm_serving, video_serving
from workers.processes.worker_process import Consumer, Loaded, WorkerParts, WorkerRole, run_worker
from workers.protocol import LLMLimits
from workers.settings import Settings

FAST_CHAT = ChatTiming(
    alive_ttl_s=2, alive_refresh_s=0.3, alive_grace_s=1.0, watch_s=0.05, silence_s=0.5
)
LIMITS = VideoLimits(
    min_side=16,
    max_side=512,
    side_multiple=16,
    max_area=512 * 512,
    default_area=64 * 64,
    min_frames=1,
    max_frames=81,
    frame_step=4,
    frame_offset=1,
    default_fps=8.0,
    min_fps=1.0,
    max_fps=60.0,
    default_seconds=1.0,
    default_steps=4,
    min_steps=1,
    max_steps=1000,
    max_prompt_chars=10_000,
    default_guidance_scale=None,
    has_negative_prompt=False,
)
FAILURES: dict[str, Callable[[], Exception]] = {
    "invalid": lambda: InvalidVideoRequest("width 3 is below 16", param="width"),
    "memory": lambda: MemoryError("no room"),
    "torch_memory": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    "boom": lambda: ValueError("boom\nwith details"),
}


@dataclass(frozen=True)
class Script:
    """What one job does."""

    name: str = "job"
    do: str = "ok"
    steps: int = 3
    step_s: float = 0.01


class ScriptedVideo:
    """A video engine that sleeps, fails or kills its process as told."""

    limits = LIMITS

    def __init__(self, log: Path) -> None:
        self._log = log

    def _note(self, text: str) -> None:
        with self._log.open("a") as stream:
            stream.write(f"{text}\n")

    def generate(
        self, request: VideoRequest, *, should_stop: Callable[[], bool]
    ) -> Iterator[Progress | VideoResult]:
        script = Script(**json.loads(request.prompt))
        self._note(f"start {script.name}")
        if script.do in FAILURES:
            raise FAILURES[script.do]()
        return self._run(script, should_stop)

    def _run(
        self, script: Script, should_stop: Callable[[], bool]
    ) -> Iterator[Progress | VideoResult]:
        for step in range(script.steps):
            if should_stop():
                self._note(f"stop {script.name}")
                raise Interrupted("stopped")
            time.sleep(script.step_s)
            if script.do == "kill" and step == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            percent = 10 + 80 * (step + 1) / script.steps
            yield Progress(stage=Stage.DENOISE, step=step + 1, steps=script.steps, percent=percent)
        self._note(f"end {script.name}")
        yield VideoResult(clip=None, fps=8.0, recipe={"name": script.name})  # type: ignore[arg-type]


def write_recipe(
    result: VideoResult, folder: Path, *, save_frames: bool, should_stop: Callable[[], bool]
) -> list[Path]:
    """Stands in for the writer of clips."""
    path = folder / "motion.mp4"
    path.write_text(json.dumps(dict(result.recipe)))
    return [path]


@dataclass(frozen=True)
class Talk:
    """What one chat does: `num` tokens `prefix0 prefix1 …`, one every `token_s`."""

    prefix: str = "t"
    num: int = 5
    token_s: float = 0.0
    do: str = "ok"


class _Running:
    def __init__(
        self,
        log: Callable[[str], None],
        request_id: str,
        talk: Talk,
        listener: Callable[[EngineItem | None], None],
    ) -> None:
        self._log = log
        self._id = request_id
        self._talk = talk
        self._say = listener
        self._cancelled = threading.Event()
        threading.Thread(target=self._produce, daemon=True).start()

    def _produce(self) -> None:
        talk = self._talk
        for number in range(talk.num):
            if self._cancelled.wait(talk.token_s):
                self._log(f"cancelled {self._id} after {number}")
                self._say(None)
                return
            if talk.do == "die" and number == 2:
                self._say(EngineDead("the engine loop has ended: boom"))
                return
            if talk.do == "break" and number == 2:
                self._say(RequestFailed("oops"))
                return
            if talk.do == "late" and number == 2:
                self._say(DeadlineExceeded("the deadline of 1 s has passed"))
                return
            reason = "length" if number == talk.num - 1 else None
            self._say(TextDelta(0, f"{talk.prefix}{number} ", (number,), None, reason))
        self._say(Finished(3, talk.num, 1))

    def cancel(self) -> None:
        self._cancelled.set()


class ScriptedChat:
    """A language engine that counts, fails or kills its process as told."""

    def __init__(self, log: Path) -> None:
        self._log_path = log

    def _note(self, text: str) -> None:
        with self._log_path.open("a") as stream:
            stream.write(f"{text}\n")

    def submit(
        self, request: GenerationRequest, listener: Callable[[EngineItem | None], None]
    ) -> _Running:
        assert request.messages is not None
        talk = Talk(**json.loads(request.messages[0].content))
        self._note(f"submit {request.request_id}")
        match talk.do:
            case "long":
                raise ContextLengthExceeded(9000, 8192)
            case "invalid":
                raise InvalidRequest("top_k is bad", param="top_k")
            case "full":
                raise QueueFull(256, 256)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return _Running(self._note, request.request_id, talk, listener)


def video_role(settings: Settings, log: Path) -> WorkerRole[ScriptedVideo]:
    """A worker around `ScriptedVideo`."""

    def load() -> Loaded[ScriptedVideo]:
        engine = ScriptedVideo(log)
        return Loaded(
            engine=engine,
            source="scripted",
            card={"dtype": "none"},
            video=video_serving.wire_limits(engine),
        )

    def serve(parts: WorkerParts, loaded: Loaded[ScriptedVideo]) -> Consumer:
        return video_serving.serve_engine(parts, loaded, write_recipe)

    return WorkerRole(role="video", model=settings.video_model, devices="", load=load, serve=serve)


def dies_with_message(log: Path) -> Path:
    """While it exists, the next worker that is handed a chat's message takes it along and dies."""
    return log.with_name("dies-with-message")


def chat_role(settings: Settings, log: Path) -> WorkerRole[ScriptedChat]:
    """A worker around `ScriptedChat`."""

    def load() -> Loaded[ScriptedChat]:
        return Loaded(
            engine=ScriptedChat(log),
            source="scripted",
            card={"dtype": "none"},
            llm=LLMLimits(max_model_len=8192, vocab_size=100),
        )

    def die(**_: object) -> None:
        try:
            dies_with_message(log).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def serve(parts: WorkerParts, loaded: Loaded[ScriptedChat]) -> Consumer:
        task_prerun.connect(die, weak=False)
        return llm_serving.serve_engine(parts, loaded.engine, FAST_CHAT, StreamInterval())

    return WorkerRole(role="llm", model=settings.llm_model, devices="", load=load, serve=serve)


if __name__ == "__main__":
    make_role = {"video": video_role, "llm": chat_role}[sys.argv[1]]
    own_settings = Settings()
    sys.exit(run_worker(own_settings, make_role(own_settings, Path(sys.argv[2]))))
