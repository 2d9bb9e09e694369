"""A video engine over ranks that are processes: frames of one rank, losses named and mended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from video_engine.config import EngineConfig
from video_engine.engine import VideoEngine
from video_engine.errors import InvalidLayout
from video_engine.types import Progress, Stage, VideoRequest, VideoResult
from workers.errors import GroupLost
from workers.processes.video_ranks import RankedEngine, load_over_ranks
from workers.ranks.watch import Limits
from workers.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# See tests/video_engine/parallel: a value between two bytes may fall to either.
MOST_LEVELS = 1


@pytest.fixture(scope="module")
def request_() -> VideoRequest:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    return VideoRequest(
        image=Image.fromarray(pixels), prompt="slow zoom in", width=96, height=64, num_frames=9,
        fps=24.0, steps=8, seed=5, guidance_scale=2.5,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(request_: VideoRequest) -> np.ndarray:
    return rendered(VideoEngine.load(EngineConfig(dtype="float32")), request_)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., RankedEngine]]:
    """Load motion-small in a layout; everything is closed at the end."""
    loaded: list[RankedEngine] = []

    def over_ranks(layout: str, **more: Any) -> RankedEngine:
        settings = Settings(data_dir=tmp_path, video_layout=layout, num_threads=1)
        config = EngineConfig(layout=layout, num_threads=1)
        engine, group = load_over_ranks(config, settings, **more)
        loaded.append(RankedEngine(engine, group, end=lambda _: None))
        return loaded[-1]

    yield over_ranks
    for engine in loaded:
        engine.close()


def rendered(
    engine: Any, request: VideoRequest, on_step: Callable[[int], None] = lambda _: None
) -> np.ndarray:
    for event in engine.generate(request, should_stop=lambda: False):
        if isinstance(event, VideoResult):
            return event.clip.frames
        assert isinstance(event, Progress)
        if event.stage is Stage.DENOISE:
            on_step(event.step)
    raise AssertionError("a render ends with its result")


def levels(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.abs(a.astype(np.int16) - b.astype(np.int16)).max())


@pytest.mark.parametrize("layout", ["ulysses2", "cfg2", "ulysses2,groups2", "cfg2,ulysses2"])
def test_the_clip_of_one_rank(
    layout: str, load: Callable[..., RankedEngine], request_: VideoRequest, expected: np.ndarray
) -> None:
    found = rendered(load(layout), request_)
    assert expected.std() > 1
    assert levels(found, expected) <= (0 if layout == "cfg2" else MOST_LEVELS)


@pytest.mark.parametrize("layout", ["ulysses2", "cfg2"])
def test_a_killed_rank_is_named_and_the_clip_comes_out_the_same(
    layout: str, load: Callable[..., RankedEngine], request_: VideoRequest
) -> None:
    engine = load(layout)
    undisturbed = rendered(engine, request_)
    victim = pid(engine)

    def strike(step: int) -> None:
        if step == 3:
            os.kill(victim, signal.SIGKILL)

    np.testing.assert_array_equal(rendered(engine, request_, strike), undisturbed)
    status = engine.group.status()
    assert f"rank 1 (process {victim})" in status["rank_last_verdict"]
    assert "died" in status["rank_last_verdict"]
    assert status["ranks"]["restarts_total"] == 1
    assert pid(engine) != victim


def test_a_rank_that_stalls_is_named_and_replaced(
    load: Callable[..., RankedEngine], request_: VideoRequest
) -> None:
    engine = load("ulysses2", limits=Limits(floor_s=3.0, idle_s=3.0))
    undisturbed = rendered(engine, request_)
    victim = pid(engine)

    def strike(step: int) -> None:
        if step == 3:
            os.kill(victim, signal.SIGSTOP)

    np.testing.assert_array_equal(rendered(engine, request_, strike), undisturbed)
    verdict = engine.group.status()["rank_last_verdict"]
    assert f"rank 1 (process {victim})" in verdict
    assert "stalled" in verdict


def test_a_rank_lost_between_jobs_is_back_before_the_next(
    load: Callable[..., RankedEngine], request_: VideoRequest
) -> None:
    engine = load("ulysses2")
    undisturbed = rendered(engine, request_)
    victim = pid(engine)
    os.kill(victim, signal.SIGKILL)
    deadline_s = time.monotonic() + 90
    while pid(engine) in (victim, None) or engine.group.status()["rank_state"] != "running":
        assert time.monotonic() < deadline_s, engine.group.status()
        time.sleep(0.1)
    np.testing.assert_array_equal(rendered(engine, request_), undisturbed)


def test_a_rank_that_cannot_load_ends_the_start_by_name(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, video_layout="ulysses2")
    with pytest.raises(InvalidLayout, match="ulysses1"):
        load_over_ranks(EngineConfig(layout="ulysses1"), settings)
    with pytest.raises(GroupLost, match="rank 1"):
        load_over_ranks(EngineConfig(layout="ulysses2"), settings, command=("/bin/false",))


def pid(engine: RankedEngine) -> int | None:
    processes = engine.group.status()["rank_processes"]
    return processes[1]["pid"] if len(processes) > 1 else None
