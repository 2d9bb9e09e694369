"""The video worker: a process with one resident VideoEngine, alone or as rank 0 of several."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from video_engine.config import EngineConfig
from video_engine.engine import VideoEngine
from video_engine.errors import InvalidLayout, MalformedLayout
from video_engine.stages.write import write_clip
from workers.processes.video_ranks import RankedEngine, load_over_ranks
from workers.processes.video_serving import serve_engine, wire_limits
from workers.processes.worker_process import Consumer, Loaded, WorkerParts, WorkerRole, run_worker

if TYPE_CHECKING:
    from workers.render.renderer import RenderEngine
    from workers.settings import Settings

_logger = logging.getLogger(__name__)
_WRONG_USAGE, _DOES_NOT_FIT = 2, 4


def main(settings: Settings) -> int:
    """Run a video worker until it is told to stop; the exit code.

    A layout is refused with one line and no traceback: 2 where its text names none, 4 where it
    cannot be had.
    """
    role = WorkerRole(
        role="video",
        model=settings.video_model,
        devices=settings.video_devices,
        load=lambda: load_engine(settings),
        serve=_serve,
    )
    try:
        return run_worker(settings, role)
    except InvalidLayout as error:
        _logger.error("%s", error)
        return _WRONG_USAGE if isinstance(error, MalformedLayout) else _DOES_NOT_FIT


def load_engine(settings: Settings) -> Loaded[RenderEngine]:
    """Load the configured video model, over the ranks of `video_layout` where it is set.

    Raises: VideoError when it cannot be found, is not supported or cannot be laid so; GroupLost.
    """
    device = "cuda" if settings.video_devices else "cpu"
    config = EngineConfig(
        model=settings.video_model,
        device=device,
        num_threads=settings.num_threads or None,
        layout=settings.video_layout,
    )
    served: RenderEngine
    if config.layout:
        engine, group = load_over_ranks(config, settings)
        served, between_ranks, stats = RankedEngine(engine, group), group.ledger, group.status
    else:
        engine = served = VideoEngine.load(config)
        between_ranks, stats = (), dict[str, Any]
    return Loaded(
        engine=served,
        source=engine.source,
        card={
            "dtype": "float32" if device == "cpu" else "bfloat16",
            "device": device,
            "kernels": _kernels(engine),
        },
        video=wire_limits(engine),
        decisions=lambda: tuple(d.as_dict() for d in (*engine.decisions, *between_ranks)),
        stats=stats,
    )


def _kernels(engine: VideoEngine) -> list[tuple[str, str, str]]:
    """Which layers are ours: on one rank all are diffusers' own."""
    ours = [d for d in engine.decisions if d.kind == "kernel"]
    bound = [("self-attention", f"{d.what}: {d.chosen}", str(d.tier)) for d in ours]
    others = "every other layer" if bound else "every layer"
    return [*bound, (others, "stock diffusers", "generic")]


def _serve(parts: WorkerParts, loaded: Loaded[RenderEngine]) -> Consumer:
    engine = loaded.engine
    close = engine.close if isinstance(engine, RankedEngine) else lambda: None
    return serve_engine(parts, loaded, write_clip, close_engine=close)
