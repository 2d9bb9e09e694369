"""The language worker: one resident engine with continuous batching, many requests at once."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.loop import EngineLoop
from workers.chat.stream import ChatTiming
from workers.processes.llm_serving import serve_engine
from workers.processes.worker_process import Consumer, Loaded, WorkerParts, WorkerRole, run_worker
from workers.protocol import LLMLimits

if TYPE_CHECKING:
    from workers.settings import Settings

_MAX_SEQS = 32


def main(settings: Settings) -> int:
    """Run a language worker until it is told to stop; the exit code."""
    role = WorkerRole(
        role="llm",
        model=settings.llm_model,
        devices=settings.llm_devices,
        load=lambda: load_engine(settings),
        serve=_serve_loop,
    )
    return run_worker(settings, role)


def load_engine(settings: Settings) -> Loaded[EngineLoop]:
    """Load the configured language model; its loop is not started yet.

    Raises: LLMError when it cannot be found or is not supported.
    """
    config = EngineConfig(
        model=settings.llm_model,
        dtype=settings.dtype,
        max_num_seqs=min(settings.max_chat_streams, _MAX_SEQS),
        num_threads=settings.num_threads or None,
    )
    engine = LLMEngine.load(config)
    card = engine.card
    return Loaded(
        engine=EngineLoop(engine),
        source=card.source,
        card=asdict(card) | {"device": "cpu"},
        llm=LLMLimits(max_model_len=card.max_model_len, vocab_size=card.vocab_size),
    )


def _serve_loop(parts: WorkerParts, loaded: Loaded[EngineLoop]) -> Consumer:
    loop = loaded.engine
    loop.start()
    return serve_engine(parts, loop, ChatTiming(), close_engine=loop.stop)
