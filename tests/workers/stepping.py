"""A worker whose engine steps: `python stepping.py LOG` (see `StepEngine`)."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llm_engine.errors import QueueFull
from llm_engine.types import Finished, GenerationRequest, TextDelta
from workers.chat.stream import ChatTiming
from workers.chat.stream_interval import StreamInterval
from workers.chat.translation import EngineItem
from workers.processes import llm_serving
from workers.processes.worker_process import Consumer, Loaded, WorkerParts, WorkerRole, run_worker
from workers.protocol import LLMLimits
from workers.settings import Settings


@dataclass
class _Seq:
    listener: Callable[[EngineItem | None], None]
    num: int
    done: int = 0
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class StepEngine:
    """Gives every running request one token a step, as a batching engine does.

    At most `max_num_seqs` run; the others wait here. A request's `max_tokens` is how many tokens
    it gets: "0 ", "1 ", …. `step_s` is how long a step takes, without the GIL.
    """

    def __init__(self, step_s: float, max_num_seqs: int, max_queued: int) -> None:
        self._step_s = step_s
        self._max_num_seqs = max_num_seqs
        self._max_queued = max_queued
        self._waiting: deque[_Seq] = deque()
        self._running: list[_Seq] = []
        self._changed = threading.Condition()
        self.num_tokens = self.num_steps = 0
        self.busy_s = self.cpu_s = 0.0
        threading.Thread(target=self._run, name="llm-engine", daemon=True).start()

    def submit(
        self, request: GenerationRequest, listener: Callable[[EngineItem | None], None]
    ) -> _Seq:
        with self._changed:
            if len(self._waiting) >= self._max_queued:
                raise QueueFull(len(self._waiting), self._max_queued)
            seq = _Seq(listener, request.params.max_tokens or 16)
            self._waiting.append(seq)
            self._changed.notify()
        return seq

    def stats(self) -> dict[str, float]:
        return {
            "steps_total": self.num_steps,
            "generated_tokens_total": self.num_tokens,
            "busy_seconds_total": self.busy_s,
            "engine_cpu_seconds_total": self.cpu_s,
            "process_cpu_seconds_total": time.process_time(),
        }

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._running):
                    self._changed.wait()
                while self._waiting and len(self._running) < self._max_num_seqs:
                    self._running.append(self._waiting.popleft())
            started_s = time.perf_counter()
            time.sleep(self._step_s)
            self._running = [seq for seq in self._running if self._advance(seq)]
            self.num_steps += 1
            self.busy_s += time.perf_counter() - started_s
            self.cpu_s = time.thread_time()

    def _advance(self, seq: _Seq) -> bool:
        if seq.is_cancelled:
            seq.listener(None)
            return False
        self.num_tokens += 1
        is_last = seq.done + 1 == seq.num
        reason = "length" if is_last else None
        seq.listener(TextDelta(0, f"{seq.done} ", (seq.done,), None, reason))
        seq.done += 1
        if is_last:
            seq.listener(Finished(3, seq.num, 0))
        return not is_last


def role(settings: Settings, script: dict[str, float]) -> WorkerRole[StepEngine]:
    """A worker around a `StepEngine`."""

    def load() -> Loaded[StepEngine]:
        engine = StepEngine(
            script.get("step_s", 0.02), settings.llm_max_num_seqs, settings.max_chat_streams
        )
        return Loaded(
            engine=engine,
            source="scripted",
            card={"dtype": "none", "plan_hash": "feedbeef"},
            llm=LLMLimits(max_model_len=8192, vocab_size=100),
            stats=lambda: dict(engine.stats()),
        )

    def serve(parts: WorkerParts, loaded: Loaded[StepEngine]) -> Consumer:
        return llm_serving.serve_engine(parts, loaded.engine, ChatTiming(), StreamInterval())

    return WorkerRole(role="llm", model=settings.llm_model, devices="", load=load, serve=serve)


if __name__ == "__main__":
    own = Settings()
    sys.exit(run_worker(own, role(own, json.loads(Path(sys.argv[1]).read_text()))))
