"""The language worker: one resident engine with continuous batching, many requests at once."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from kernels.errors import ImplUnavailable, StrictRefusal
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidConfig, MalformedLayout, ModelNotFound, UnsupportedModel
from llm_engine.loop import EngineLoop
from workers.chat.stream import ChatTiming
from workers.chat.stream_interval import StreamInterval, choose_interval
from workers.llm_settings import engine_config
from workers.processes.llm_ranks import load_over_ranks
from workers.processes.llm_serving import serve_engine
from workers.processes.worker_process import Consumer, Loaded, WorkerParts, WorkerRole, run_worker
from workers.protocol import LLMLimits

if TYPE_CHECKING:
    from workers.ranks.group import RankGroup
    from workers.settings import Settings

_logger = logging.getLogger(__name__)
_REFUSALS: tuple[tuple[type[Exception], int], ...] = (
    (StrictRefusal, 3),
    (ImplUnavailable, 3),
    (MalformedLayout, 2),
    (InvalidConfig, 4),
    (ModelNotFound, 2),
    (UnsupportedModel, 2),
)


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """A loop that is ready to start, and the other ranks of its engine, if there are any."""

    loop: EngineLoop
    group: RankGroup | None
    interval: StreamInterval

    def close(self) -> None:
        """End the loop, then the ranks."""
        self.loop.stop()
        if self.group is not None:
            self.group.close()


def main(settings: Settings) -> int:
    """Run a language worker until it is told to stop; the exit code.

    A model that cannot be served as set is refused with one line and no traceback: 2 where there
    is no such model, 3 below the strict floor, 4 where it does not fit.
    """
    role = WorkerRole(
        role="llm",
        model=settings.llm_model,
        devices=settings.llm_devices,
        load=lambda: load_engine(settings),
        serve=_serve_loop,
    )
    try:
        return run_worker(settings, role)
    except tuple(kind for kind, _ in _REFUSALS) as error:
        _logger.error("%s", error)
        return next(code for kind, code in _REFUSALS if isinstance(error, kind))


def load_engine(settings: Settings) -> Loaded[ServedEngine]:
    """Load the configured language model and warm it up; its loop is not started yet.

    One full chunk is computed and the grammars' vocabulary is built, so that neither falls on the
    first request.
    Raises: LLMError when it cannot be found or is not supported.
    """
    config, group = engine_config(settings), None
    if config.layout:
        engine, group = load_over_ranks(config, settings)
    else:
        engine = LLMEngine.load(config)
        engine.warm_up()
    engine.preparer.warm_up()
    card, device = engine.card, config.device
    between_ranks = group.ledger if group else ()
    interval, of_streams = choose_interval(settings.llm_stream_interval_s, on_cpu=device == "cpu")
    return Loaded(
        engine=ServedEngine(EngineLoop(engine, group), group, interval),
        source=card.source,
        card=asdict(card) | {"device": device},
        llm=LLMLimits(
            max_model_len=card.max_model_len,
            vocab_size=card.vocab_size,
            adapters=tuple(config.adapters),
        ),
        decisions=lambda: tuple(
            decision.as_dict() for decision in (*engine.ledger, *between_ranks, of_streams)
        ),
        stats=lambda: asdict(engine.stats()) | (group.status() if group else {}),
    )


def _serve_loop(parts: WorkerParts, loaded: Loaded[ServedEngine]) -> Consumer:
    engine = loaded.engine
    engine.loop.start()
    return serve_engine(
        parts, engine.loop, ChatTiming(), engine.interval, close_engine=engine.close
    )
