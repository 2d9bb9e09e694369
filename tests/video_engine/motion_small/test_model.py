import json
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from video_engine.models.motion_small.arrays import Picture
from video_engine.models.motion_small.model import LIMITS, MotionSmall, weights_folder
from video_engine.models.registry import BUILT_IN, load_model
from video_engine.picture import fit_picture
from video_engine.train.evaluate import fit_camera, measure_flow, usable_pixels
from video_engine.types import Fit, VideoRequest


@pytest.fixture(scope="module")
def model() -> MotionSmall:
    return MotionSmall.load(device="cpu", dtype="float32")


def picture(width: int = 128, height: int = 128, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    layers = [
        cv2.resize(rng.uniform(0, 255, (n, n, 3)), (width, height), interpolation=cv2.INTER_CUBIC)
        for n in (4, 12, 32)
    ]
    return Image.fromarray(np.mean(layers, axis=0).clip(0, 255).astype(np.uint8))


def request(
    prompt: str = "zoom in",
    *,
    size: tuple[int, int] = (128, 128),
    num_frames: int = 9,
    **others: Any,
) -> VideoRequest:
    fields: dict[str, Any] = {"image": picture(*size), "fps": 24.0, "steps": 6, "seed": 0}
    fields |= others
    return VideoRequest(
        prompt=prompt, width=size[0], height=size[1], num_frames=num_frames, **fields
    )


def frames_of(model: MotionSmall, asked: VideoRequest) -> Picture:
    conditioning = model.encode(asked)
    latents = model.prepare(asked, conditioning)
    while latents.index < latents.steps:
        latents = model.step(conditioning, latents)
    return model.decode(asked, conditioning, latents).frames


def camera_of(frames: Picture) -> str:
    flow = measure_flow(frames, [len(frames) - 1])
    return fit_camera(flow[0], usable_pixels(frames[0], flow)[0]).dominant()


def test_weights_are_small_and_laid_out_like_a_diffusers_folder() -> None:
    folder = weights_folder()
    assert sum(p.stat().st_size for p in folder.rglob("*.safetensors")) <= 20_000_000
    for name in ("transformer/config.json", "scheduler/scheduler_config.json", "model_index.json"):
        assert json.loads((folder / name).read_text())["_class_name"]


def test_registry_loads_it_as_the_default() -> None:
    from video_engine.config import EngineConfig

    assert "motion-small" in BUILT_IN
    assert isinstance(load_model(EngineConfig()), MotionSmall)


def test_scheduler_is_stock_with_shift_40(model: MotionSmall) -> None:
    assert type(model.scheduler).__module__.startswith("diffusers.")
    assert model.scheduler.config.shift == 40.0


def test_same_request_same_pixels_whatever_ran_before(model: MotionSmall) -> None:
    first = frames_of(model, request())
    frames_of(model, request("the cat floats", seed=9))
    assert np.array_equal(first, frames_of(model, request()))


@pytest.mark.parametrize("prompt", ["shaky handheld camera", "zoom in", ""])
def test_seeds_differ_where_the_prompt_leaves_freedom(model: MotionSmall, prompt: str) -> None:
    first, second = (frames_of(model, request(prompt, seed=seed)) for seed in (0, 1))
    assert np.abs(first[-1].astype(int) - second[-1]).mean() > 0.3


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_frame_zero_is_the_fitted_picture(model: MotionSmall, fit: Fit) -> None:
    asked = request(size=(96, 160), image=picture(200, 90), fit=fit)
    assert np.array_equal(frames_of(model, asked)[0], fit_picture(asked.image, 96, 160, fit))


@pytest.mark.parametrize(
    ("size", "num_frames"), [((64, 64), 2), ((64, 64), 361), ((66, 302), 5), ((400, 64), 3)]
)
def test_any_size_and_length(model: MotionSmall, size: tuple[int, int], num_frames: int) -> None:
    frames = frames_of(model, request("pan left", size=size, num_frames=num_frames))
    assert frames.shape == (num_frames, size[1], size[0], 3)
    assert frames.dtype == np.uint8


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("pan left", "pan left"),
        ("the camera pans to the right", "pan right"),
        ("tilt up", "pan up"),
        ("Pan DOWN!!", "pan down"),
        ("zooming in", "zoom in"),
        ("zoom out, please", "zoom out"),
        ("rotate clockwise", "rotate cw"),
        ("turn counter-clockwise", "rotate ccw"),
    ],
)
def test_camera_prompts_are_obeyed(model: MotionSmall, prompt: str, kind: str) -> None:
    assert camera_of(frames_of(model, request(prompt))) == kind


@pytest.mark.parametrize(
    "prompt",
    ["", "   ", "🐈🐈🐈", "左へパン", "a" * 2000, "zoom " * 300, "\x00\n\t", "¿Qué?", "-- ; DROP"],
)
def test_any_prompt_gives_a_clip(model: MotionSmall, prompt: str) -> None:
    frames = frames_of(model, request(prompt, size=(64, 64), num_frames=3))
    assert frames.shape == (3, 64, 64, 3)


@pytest.mark.parametrize(
    ("mode", "value"), [("L", 0), ("RGB", (255, 255, 255)), ("RGBA", (9,) * 4)]
)
def test_flat_pictures_give_a_clip(model: MotionSmall, mode: str, value: Any) -> None:
    image = Image.new(mode, (80, 80), value)
    assert frames_of(model, request("breathing", size=(80, 80), image=image)).shape[0] == 9


def test_guidance_of_one_is_no_guidance_and_others_change_the_motion(model: MotionSmall) -> None:
    plain = frames_of(model, request("parallax"))
    assert np.array_equal(plain, frames_of(model, request("parallax", guidance_scale=1.0)))
    assert not np.array_equal(plain, frames_of(model, request("parallax", guidance_scale=2.0)))


def test_step_leaves_its_input_alone(model: MotionSmall) -> None:
    asked = request()
    conditioning = model.encode(asked)
    latents = model.prepare(asked, conditioning)
    before = latents.tensors["motion"].clone()
    after = model.step(conditioning, latents)
    assert torch.equal(latents.tensors["motion"], before)
    assert (latents.index, after.index, after.steps) == (0, 1, 6)


def test_bfloat16_moves_alike() -> None:
    lower = MotionSmall.load(device="cpu", dtype="bfloat16")
    assert camera_of(frames_of(lower, request("zoom out"))) == "zoom out"


def test_recipe_and_limits_are_plain(model: MotionSmall) -> None:
    recipe = json.loads(json.dumps(model.recipe()))
    assert recipe["family"] == "motion-small"
    assert len(recipe["weights"]) == 2
    assert LIMITS.min_side == 64
    assert (LIMITS.min_frames, LIMITS.max_frames) == (2, 361)
