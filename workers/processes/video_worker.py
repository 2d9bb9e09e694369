"""The video worker: a process with one resident VideoEngine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from video_engine.config import EngineConfig
from video_engine.engine import VideoEngine
from video_engine.stages.write import write_clip
from workers.processes.video_serving import serve_engine, wire_limits
from workers.processes.worker_process import Loaded, WorkerRole, run_worker

if TYPE_CHECKING:
    from workers.render.renderer import RenderEngine
    from workers.settings import Settings


def main(settings: Settings) -> int:
    """Run a video worker until it is told to stop; the exit code."""
    role = WorkerRole(
        role="video",
        model=settings.video_model,
        devices=settings.video_devices,
        load=lambda: load_engine(settings),
        serve=lambda parts, loaded: serve_engine(parts, loaded, write_clip),
    )
    return run_worker(settings, role)


def load_engine(settings: Settings) -> Loaded[RenderEngine]:
    """Load the configured video model.

    Raises: VideoError when it cannot be found or is not supported.
    """
    device = "cuda" if settings.video_devices else "cpu"
    config = EngineConfig(
        model=settings.video_model, device=device, num_threads=settings.num_threads or None
    )
    engine = VideoEngine.load(config)
    return Loaded(
        engine=engine,
        source=engine.source,
        card={
            "dtype": "float32" if device == "cpu" else "bfloat16",
            "device": device,
            # The layers are diffusers' own: no kernel of ours is bound to them yet.
            "kernels": [("every layer", "stock diffusers", "generic")],
        },
        video=wire_limits(engine),
    )
