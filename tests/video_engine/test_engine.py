"""The engine's promises: ordered events, no traces, stopping anywhere, rendering again."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from video_engine.engine import VideoEngine
from video_engine.errors import Interrupted, InvalidVideoRequest
from video_engine.recipe import request_from_recipe
from video_engine.stages.denoise import denoise
from video_engine.stages.write import read_recipe, write_clip
from video_engine.types import Conditioning, Latents, Progress, Stage, VideoRequest, VideoResult

KINDS = ("wan2.2", "ltx", "h3")
Engines = Callable[..., VideoEngine]
Requests = Callable[..., VideoRequest]


def render(engine: VideoEngine, request: VideoRequest) -> VideoResult:
    *_, last = engine.generate(request)
    assert isinstance(last, VideoResult)
    return last


@pytest.mark.parametrize("kind", KINDS)
def test_events(kind: str, tiny_engine: Engines, tiny_request: Requests) -> None:
    *before, last = tiny_engine(kind).generate(tiny_request(kind))
    assert isinstance(last, VideoResult)
    events = [event for event in before if isinstance(event, Progress)]
    assert events == before
    percents = [event.percent for event in events]
    assert percents == sorted(percents)
    assert percents[0] == 0.0
    assert 90.0 < percents[-1] < 100.0  # writing is still to come
    stages = [stage for stage, _ in itertools.groupby(event.stage for event in events)]
    assert stages == [Stage.ENCODE, Stage.PREPARE, Stage.DENOISE, Stage.DECODE]
    steps = [event.step for event in events if event.stage is Stage.DENOISE]
    assert steps == list(range(steps[-1] + 1))
    assert set(last.stage_seconds) == {"encode", "prepare", "denoise", "decode"}
    assert all(seconds > 0 for seconds in last.stage_seconds.values())
    json.dumps(last.recipe, allow_nan=False)


def test_stage_seconds_leave_the_caller_s_own_time_out(
    tiny_engine: Engines, tiny_request: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, last = [0.0], None
    monkeypatch.setattr("video_engine.engine.time.perf_counter", lambda: now_s[0])
    for event in tiny_engine("wan2.2").generate(tiny_request("wan2.2")):
        now_s[0] += 100.0
        last = event
    assert isinstance(last, VideoResult)
    assert set(last.stage_seconds.values()) == {0.0}


@pytest.mark.parametrize("kind", KINDS)
def test_same_request_same_frames_another_seed_others(
    kind: str, tiny_engine: Engines, tiny_request: Requests
) -> None:
    engine, request = tiny_engine(kind), tiny_request(kind)
    first = render(engine, request).clip.frames
    other = render(engine, replace(request, seed=8)).clip.frames
    np.testing.assert_array_equal(render(engine, request).clip.frames, first)
    assert (other != first).any()


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_at_every_border_then_rendered_as_if_never(
    kind: str, tiny_engine: Engines, tiny_request: Requests
) -> None:
    engine, request = tiny_engine(kind), tiny_request(kind)
    expected = render(engine, request).clip.frames
    stages: list[str] = []
    for border in itertools.count():
        polls = itertools.count()
        try:
            list(engine.generate(request, should_stop=lambda n=border, p=polls: next(p) == n))
        except Interrupted as stop:
            stages.append(str(stop).split()[2])
        else:
            break
    assert set(stages) == {"encode", "prepare", "denoise", "decode"}
    updates = request.steps - (kind == "h3")
    assert stages.count("denoise") == updates + 1
    np.testing.assert_array_equal(render(engine, request).clip.frames, expected)


@pytest.mark.parametrize("stage", ["encode", "prepare", "step", "decode"])
def test_failed_request_does_not_spoil_the_next(
    stage: str, tiny_engine: Engines, tiny_request: Requests
) -> None:
    engine, request = tiny_engine("wan2.2"), tiny_request("wan2.2")
    expected = render(engine, request).clip.frames
    with pytest.raises(MemoryError):
        list(VideoEngine(FailsIn(stage, engine.model)).generate(request))
    np.testing.assert_array_equal(render(engine, request).clip.frames, expected)


def test_two_renders_at_once_do_not_mix(tiny_engine: Engines, tiny_request: Requests) -> None:
    engine = tiny_engine("wan2.2")
    requests = [tiny_request("wan2.2", seed=seed) for seed in (1, 2)]
    expected = [render(engine, request).clip.frames for request in requests]
    results: list[Any] = [None, None]
    for events in itertools.zip_longest(*(engine.generate(request) for request in requests)):
        results = list(events)
    for result, frames in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.clip.frames, frames)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["recipe.json", "motion.mp4"])
def test_rendering_again_from_recipe_and_picture(
    kind: str, source: str, tiny_engine: Engines, tiny_request: Requests, tmp_path: Any
) -> None:
    engine = tiny_engine(kind)
    request = tiny_request(kind, prompt='fog = "thick"; #1 \\ 🚢\nnext line')
    if kind != "h3":
        request = replace(request, guidance_scale=None, fps=23.976)
    first = render(engine, request)
    write_clip(first, tmp_path)
    request.image.save(tmp_path / "picture.png")

    recipe = read_recipe(tmp_path / source)
    again = request_from_recipe(recipe, Image.open(tmp_path / "picture.png"))
    assert again.prompt == request.prompt
    assert again.guidance_scale == engine.limits.default_guidance_scale
    np.testing.assert_array_equal(render(engine, again).clip.frames, first.clip.frames)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_latents_go_on_as_if_never_stopped(
    kind: str, tiny_engine: Engines, tiny_request: Requests
) -> None:
    model, request = tiny_engine(kind).model, tiny_request(kind, steps=5)
    conditioning = model.encode(request)
    updates = denoise(model, conditioning, model.prepare(request, conditioning))
    next(updates)
    saved = copy.deepcopy(next(updates))
    *_, straight = updates
    *_, resumed = denoise(model, conditioning, saved)
    assert resumed.index == straight.index == straight.steps
    for name, tensor in straight.tensors.items():
        np.testing.assert_array_equal(resumed.tensors[name].numpy(), tensor.numpy())


def test_recipe_refuses_another_picture_and_another_schema(
    tiny_engine: Engines, tiny_request: Requests
) -> None:
    recipe = dict(render(tiny_engine("wan2.2"), tiny_request("wan2.2")).recipe)
    with pytest.raises(InvalidVideoRequest, match="original picture"):
        request_from_recipe(recipe, Image.new("RGB", (32, 32)))
    with pytest.raises(InvalidVideoRequest, match="version 999"):
        request_from_recipe({**recipe, "schema_version": 999}, Image.new("RGB", (32, 32)))


def test_bad_request_is_refused_before_the_first_event(
    tiny_engine: Engines, tiny_request: Requests
) -> None:
    with pytest.raises(InvalidVideoRequest) as refusal:
        tiny_engine("wan2.2").generate(tiny_request("wan2.2", num_frames=10))
    assert refusal.value.param == "num_frames"


class FailsIn:
    """A model that runs out of memory in one of its methods."""

    def __init__(self, stage: str, model: Any) -> None:
        self.name, self.source, self.limits = model.name, model.source, model.limits
        self._stage, self._model = stage, model

    def encode(self, request: VideoRequest) -> Conditioning:
        return self._call("encode", request)

    def prepare(self, request: VideoRequest, conditioning: Conditioning) -> Latents:
        return self._call("prepare", request, conditioning)

    def step(self, conditioning: Conditioning, latents: Latents) -> Latents:
        return self._call("step", conditioning, latents)

    def decode(self, request: VideoRequest, conditioning: Conditioning, latents: Latents) -> Any:
        return self._call("decode", request, conditioning, latents)

    def recipe(self) -> dict[str, Any]:
        return self._model.recipe()

    def _call(self, name: str, *arguments: Any) -> Any:
        outcome = getattr(self._model, name)(*arguments)
        if name == self._stage:
            raise MemoryError(name)
        return outcome
