"""VideoEngine: one loaded model, rendering one request after another."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from video_engine.checks import check_request
from video_engine.models.registry import load_model
from video_engine.progress import progress
from video_engine.recipe import make_recipe
from video_engine.stages.decode import decode
from video_engine.stages.denoise import denoise
from video_engine.stages.encode import encode
from video_engine.stages.prepare import prepare
from video_engine.stop import StopCheck, never, stop_if
from video_engine.types import Progress, Stage, VideoResult

if TYPE_CHECKING:
    from kernels.ledger import Decision
    from video_engine.config import EngineConfig
    from video_engine.models.base import VideoModel
    from video_engine.parallel.laid import Laid
    from video_engine.parallel.ranks import Ranks
    from video_engine.types import VideoLimits, VideoRequest


class VideoEngine:
    """One model and the loop that runs its stages.

    Invariants: holds nothing of a request between calls, so a failed or stopped one leaves no
    trace and the same request gives the same clip, whatever ran before.
    """

    def __init__(self, model: VideoModel, laid: Laid | None = None) -> None:
        """Take a loaded model, laid over ranks or not; `load` is the usual way in."""
        self.model = model
        self._laid = laid

    @classmethod
    def load(cls, config: EngineConfig, ranks: Ranks | None = None) -> VideoEngine:
        """Find and load the configured model; with a layout, as rank 0 of `ranks`.

        Raises: ModelNotFound, UnsupportedModel; InvalidLayout for a layout that cannot be had.
        """
        if not config.layout:
            return cls(load_model(config))
        from video_engine.parallel.laid import load_laid

        return cls(*load_laid(config, ranks))

    @property
    def name(self) -> str:
        """The model's name, as the service shows it."""
        return self.model.name

    @property
    def source(self) -> str:
        """The folder or hub id the weights came from."""
        return self.model.source

    @property
    def limits(self) -> VideoLimits:
        """What the model accepts."""
        return self.model.limits

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """How the model lies over ranks, and why; nothing for one rank."""
        return self._laid.decisions if self._laid else ()

    def tend(self) -> None:
        """Bring lost ranks back while nothing is computed; from any thread.

        Raises: what the ranks raise where they may not be brought back.
        """
        if self._laid:
            self._laid.denoiser.tend()

    def close(self) -> None:
        """Close what the engine joined; the ranks themselves are their starter's."""
        if self._laid:
            self._laid.denoiser.close()

    def check(self, request: VideoRequest) -> None:
        """Return if `generate` would take the request.

        Raises: InvalidVideoRequest naming field, value, bound and way out.
        """
        check_request(request, self.limits)

    def generate(
        self, request: VideoRequest, *, should_stop: StopCheck = never
    ) -> Iterator[Progress | VideoResult]:
        """Render: progress events, percentages never falling, then the VideoResult as last item.

        `should_stop` is asked at every step and stage border.

        Raises: InvalidVideoRequest before the first event; Interrupted when asked to stop.
        """
        self.check(request)
        return self._run(request, should_stop)

    def _run(
        self, request: VideoRequest, should_stop: StopCheck
    ) -> Iterator[Progress | VideoResult]:
        clock = _StageClock(should_stop)

        yield clock.start(Stage.ENCODE)
        with clock.timing(Stage.ENCODE):
            conditioning = encode(self.model, request)
        yield clock.done(Stage.ENCODE)

        yield clock.start(Stage.PREPARE)
        with clock.timing(Stage.PREPARE):
            latents = prepare(self.model, request, conditioning)
        yield clock.done(Stage.PREPARE)

        yield clock.start(Stage.DENOISE, latents.steps)
        updates = denoise(self.model, conditioning, latents)
        while latents.index < latents.steps:
            with clock.timing(Stage.DENOISE):
                latents = next(updates)
            yield clock.done(Stage.DENOISE, latents.index, latents.steps)

        yield clock.start(Stage.DECODE)
        with clock.timing(Stage.DECODE):
            clip = decode(self.model, request, conditioning, latents)
        yield clock.done(Stage.DECODE)

        yield VideoResult(
            clip=clip,
            fps=request.fps,
            recipe=make_recipe(request, self.model) | self._layout,
            stage_seconds=clock.seconds,
        )

    @property
    def _layout(self) -> dict[str, str]:
        return {"layout": self._laid.text} if self._laid else {}


class _StageClock:
    """Times the stages' own work and asks, at each border, whether to go on."""

    def __init__(self, should_stop: StopCheck) -> None:
        self._should_stop = should_stop
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timing(self, stage: Stage) -> Generator[None]:
        started_s = time.perf_counter()
        yield
        spent_s = time.perf_counter() - started_s
        self.seconds[stage] = self.seconds.get(stage, 0.0) + spent_s

    def start(self, stage: Stage, steps: int = 1) -> Progress:
        return self._border(stage, 0, steps)

    def done(self, stage: Stage, step: int = 1, steps: int = 1) -> Progress:
        return self._border(stage, step, steps)

    def _border(self, stage: Stage, step: int, steps: int) -> Progress:
        stop_if(self._should_stop, f"in {stage} after step {step} of {steps}")
        return progress(stage, step, steps)
