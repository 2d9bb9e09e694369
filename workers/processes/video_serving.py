"""A resident video engine at the queue: one job at a time, given back when the worker has to go."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from workers.app import send
from workers.processes.tasks import register_render
from workers.processes.worker_process import Consumer
from workers.protocol import VideoLimits
from workers.render.renderer import ClipWriter, RenderEngine, Renderer, RenderPlace

if TYPE_CHECKING:
    from workers.processes.worker_process import Loaded, WorkerParts

_logger = logging.getLogger(__name__)
DRAIN_LIMIT_S = 25.0


def wire_limits(engine: RenderEngine) -> VideoLimits:
    """The limits that the gateway checks requests against."""
    return VideoLimits(**asdict(engine.limits))


def serve_engine(
    parts: WorkerParts,
    loaded: Loaded[RenderEngine],
    write: ClipWriter,
    *,
    close_engine: Callable[[], None] = lambda: None,
) -> Consumer:
    """Register the render task for a resident engine."""
    settings = parts.settings
    renderer = Renderer(
        loaded.engine,
        write,
        parts.store,
        RenderPlace(
            model=parts.model,
            worker=parts.worker,
            scratch=settings.resolved_data_dir / "scratch",
            lease_s=settings.lease_s,
            beat_s=settings.beat_s,
            max_crashes=settings.max_crashes,
        ),
        drain=parts.drain,
        presence=parts.presence,
        resend=lambda job_id: send(parts.app, "video", parts.model, job_id),
    )

    def leave_now() -> None:
        _logger.warning("no step border within %.0f s; leaving", DRAIN_LIMIT_S)
        renderer.give_back()
        parts.presence.leave()
        os._exit(0)

    parts.drain.after(DRAIN_LIMIT_S, leave_now)
    register_render(parts.app, renderer.run)
    return Consumer(concurrency=1, close=close_engine)
