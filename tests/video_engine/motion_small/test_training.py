import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from video_engine.models.motion_small.arrays import Picture
from video_engine.models.motion_small.config import MotionConfig, TextConfig
from video_engine.models.motion_small.fields import jacobians
from video_engine.models.motion_small.layout import picture_layout
from video_engine.models.motion_small.text_encoder import TextEncoder
from video_engine.models.motion_small.words import split_words
from video_engine.train.data import SHARES, build_bank, draw_batch, draw_kinds
from video_engine.train.evaluate import (
    amplitude_ratio,
    fit_camera,
    intended_flow,
    measure_flow,
    usable_pixels,
)
from video_engine.train.export import export_weights
from video_engine.train.flows import CAMERA_KINDS, FLOWS, MotionDraw, make_flow
from video_engine.train.free_prompts import FREE_PROMPTS
from video_engine.train.optimiser import rate_ratio
from video_engine.train.pictures import TEST_PHOTOS, TRAINING_PHOTOS
from video_engine.train.prompts import make_prompt
from video_engine.train.train import CHECKPOINT_NAME, TrainConfig, draw_noise_levels, train_process
from video_engine.train.vocabulary import FILLERS, NOUNS, PHRASES, SPEED_WORDS

FREE_LICENCES = {"CC0-1.0", "public domain", "CC-BY-2.0"}


def picture(side: int = 128) -> Picture:
    coarse = np.random.default_rng(0).uniform(0, 255, (side // 8, side // 8, 3))
    return (
        cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)
        .clip(0, 255)
        .astype(np.uint8)
    )


def test_test_pictures_are_not_trained_on_and_training_ones_are_free() -> None:
    trained = {(p.package, p.path) for p in TRAINING_PHOTOS}
    tested = {(p.package, p.path) for p in TEST_PHOTOS}
    assert not trained & tested
    assert len(tested) >= 8
    assert {p.licence for p in TRAINING_PHOTOS} <= FREE_LICENCES
    assert all(p.author for p in (*TRAINING_PHOTOS, *TEST_PHOTOS))


def test_no_training_pixels_equal_a_test_picture() -> None:
    tested = {
        p.name: cv2.resize(p.read(), (24, 24), interpolation=cv2.INTER_AREA) for p in TEST_PHOTOS
    }
    for photo in TRAINING_PHOTOS:
        small = cv2.resize(photo.read(), (24, 24), interpolation=cv2.INTER_AREA)
        for name, other in tested.items():
            assert np.abs(small.astype(int) - other).mean() > 8, (photo.name, name)


@pytest.mark.parametrize("kind", sorted(set(FLOWS) - {"still", "shake"}))
@pytest.mark.parametrize("speed", ["slow", "plain", "fast"])
def test_every_motion_moves_without_folds(kind: str, speed: str) -> None:
    layout = picture_layout(picture(), 32)
    flow = make_flow(kind, layout, MotionDraw(speed=speed))
    assert flow.shape == (16, 2, 32, 32)
    assert np.abs(flow).max() > 0.005
    assert jacobians(flow).min() > 0


def test_every_kind_has_phrases_and_a_share() -> None:
    assert set(PHRASES) == set(FLOWS) == set(SHARES)


def test_same_seed_gives_the_same_batch() -> None:
    bank = build_bank(4, 32, 0)
    first, second = (
        draw_batch(np.random.default_rng(7), bank, 6, MotionConfig()) for _ in range(2)
    )
    assert first.prompts == second.prompts
    assert torch.equal(first.latents, second.latents)


def test_pairs_join_a_camera_motion_with_another() -> None:
    rng = np.random.default_rng(0)
    pairs = [k for k in (draw_kinds(rng) for _ in range(500)) if len(k) == 2]
    assert pairs
    assert all(
        first in CAMERA_KINDS and first.split()[0] != second.split()[0] for first, second in pairs
    )


def training_words() -> set[str]:
    text = " ".join([*NOUNS, *FILLERS, *sum(SPEED_WORDS.values(), ()), *sum(PHRASES.values(), ())])
    return set(split_words(text.replace("{n}", " ").replace("{d}", " ")))


def test_every_free_prompt_has_an_unseen_word() -> None:
    seen = training_words()
    assert len(FREE_PROMPTS) == 40
    for free in FREE_PROMPTS:
        assert set(split_words(free.text)) - seen, free.text


@pytest.mark.parametrize("kinds", [("pan left",), ("zoom in", "float"), ("ambient",)])
def test_prompts_have_no_open_places(kinds: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    prompts = [make_prompt(rng, kinds, "slow") for _ in range(100)]
    assert not any("{" in p or "}" in p for p in prompts)
    assert len(set(prompts)) > 50


def test_noise_levels_lie_in_the_unit_interval_and_near_its_end() -> None:
    levels = draw_noise_levels(2000, torch.Generator().manual_seed(0))
    assert 0 < float(levels.min()) < float(levels.max()) <= 1
    assert float(levels.median()) > 0.9


def test_rate_warms_up_then_falls() -> None:
    assert rate_ratio(0, 0.0) < rate_ratio(29, 0.0) == 1.0
    assert rate_ratio(1000, 1.0) == pytest.approx(0.02)


@pytest.mark.parametrize("kind", ["pan left", "pan up", "zoom in", "zoom out", "rotate cw"])
def test_the_camera_estimator_knows_its_own_motions(kind: str) -> None:
    layout = picture_layout(picture(), 32)
    flow = intended_flow(kind, layout, 5, 128)
    usable = np.ones(flow.shape[-2:], bool)
    assert fit_camera(flow[-1], usable).dominant() == kind


def test_optical_flow_finds_a_known_warp() -> None:
    first = picture(128)
    second = np.roll(first, 5, axis=1)
    frames = np.stack([first, second])
    flow = measure_flow(frames, [1])
    usable = usable_pixels(first, flow)
    inner = usable[0].copy()
    inner[:, :16] = inner[:, -16:] = False
    assert abs(float(np.median(flow[0, 0][inner])) * 63.5 + 5) < 0.3
    intended = np.zeros_like(flow)
    intended[:, 0] = -5 / 63.5
    assert amplitude_ratio(flow, intended, inner[None], "pan right") == pytest.approx(1, abs=0.1)


def test_text_encoder_repeats_the_pooled_token_where_no_word_is() -> None:
    encoder = TextEncoder(TextConfig())
    with torch.no_grad():
        tokens = encoder.encode(["zoom in", "", None])
    assert tokens.shape == (3, 25, 64)
    assert torch.equal(tokens[0, 0], tokens[0, 5])
    assert not torch.equal(tokens[0, 0], tokens[0, 1])
    assert torch.isfinite(tokens).all()


@pytest.mark.slow
def test_training_writes_a_checkpoint_that_resumes_and_exports(tmp_path: Path) -> None:
    config = TrainConfig(out=tmp_path, minutes=0.02, num_processes=1, batch_size=2, num_layouts=4)
    train_process(0, config, "")
    first = torch.load(tmp_path / CHECKPOINT_NAME, weights_only=True)
    # The budget counts the first run's time too, which on a slow machine is more than it asked for.
    minutes = first["spent_s"] / 60 + 0.02
    resumed = TrainConfig(
        out=tmp_path, minutes=minutes, resume=True, num_processes=1, batch_size=2, num_layouts=4
    )
    train_process(0, resumed, "")
    second = torch.load(tmp_path / CHECKPOINT_NAME, weights_only=True)
    assert second["step"] > first["step"] >= 1
    export_weights(tmp_path / CHECKPOINT_NAME, tmp_path / "weights")
    index = json.loads((tmp_path / "weights" / "model_index.json").read_text())
    assert index["transformer"] == ["diffusers", "WanTransformer3DModel"]
    sizes = [p.stat().st_size for p in (tmp_path / "weights").rglob("*.safetensors")]
    assert sum(sizes) < 20_000_000
