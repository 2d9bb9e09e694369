"""Our stages against the stock diffusers pipelines: same seed, same pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from video_engine.engine import VideoEngine
from video_engine.models.device import to_uint8
from video_engine.types import Clip, VideoRequest, VideoResult

KINDS = ("wan2.1", "wan2.2", "wan5b", "ltx", "ltx-t", "h3")
# Weights mapped from a file lie at other addresses, and vector code may then sum in another order.
TOLERANCE = 1e-6


def our_video(engine: VideoEngine, request: VideoRequest) -> tuple[torch.Tensor, Any]:
    model: Any = engine.model
    conditioning = model.encode(request)
    latents = model.prepare(request, conditioning)
    while latents.index < latents.steps:
        latents = model.step(conditioning, latents)
    video = model.decode_video(conditioning, latents)
    return (video[0], video[1].samples) if isinstance(video, tuple) else (video, None)


def rendered(engine: VideoEngine, request: VideoRequest) -> Clip:
    *_, last = engine.generate(request)
    assert isinstance(last, VideoResult)
    return last.clip


@pytest.mark.parametrize("kind", KINDS)
def test_float_frames_equal_the_stock_pipeline(
    kind: str,
    tiny_models: ModuleType,
    tiny_engine: Callable[..., VideoEngine],
    tiny_request: Callable[..., VideoRequest],
) -> None:
    request = tiny_request(kind)
    expected, expected_sound = tiny_models.stock_video(kind, tiny_models.build(kind), request)
    frames, sound = our_video(tiny_engine(kind), request)
    assert expected.std() > 0.01  # a constant video would equal anything
    assert frames.shape == (request.num_frames, 3, request.height, request.width)
    assert (frames - expected).abs().max() <= TOLERANCE
    if expected_sound is not None:
        assert expected_sound.std() > 0.01
        assert np.abs(sound - expected_sound).max() <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_engine_gives_the_stock_frames_as_bytes(
    kind: str,
    tiny_models: ModuleType,
    tiny_engine: Callable[..., VideoEngine],
    tiny_request: Callable[..., VideoRequest],
) -> None:
    engine, request = tiny_engine(kind), tiny_request(kind, seed=3, prompt="rain, slowly")
    # The same loaded weights, so equality is exact.
    expected, expected_sound = tiny_models.stock_video(kind, engine_pipe(engine), request)
    clip = rendered(engine, request)
    np.testing.assert_array_equal(clip.frames, to_uint8(expected))
    if expected_sound is None:
        assert clip.audio is None
    else:
        assert clip.audio is not None
        assert clip.audio.rate_hz == 160
        np.testing.assert_array_equal(clip.audio.samples, expected_sound)


@pytest.mark.parametrize("kind", ["wan2.1", "wan5b", "ltx"])
def test_without_guidance(
    kind: str,
    tiny_models: ModuleType,
    tiny_engine: Callable[..., VideoEngine],
    tiny_request: Callable[..., VideoRequest],
) -> None:
    engine, request = tiny_engine(kind), tiny_request(kind, guidance_scale=1.0)
    expected, _ = tiny_models.stock_video(kind, engine_pipe(engine), request)
    assert torch.equal(our_video(engine, request)[0], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_equals_the_stock_pipeline_in_bfloat16(
    kind: str,
    tiny_models: ModuleType,
    tiny_engine: Callable[..., VideoEngine],
    tiny_request: Callable[..., VideoRequest],
) -> None:
    engine, request = tiny_engine(kind, "bfloat16"), tiny_request(kind)
    pipe = engine_pipe(engine)
    assert pipe.transformer.dtype == torch.bfloat16
    expected, _ = tiny_models.stock_video(kind, pipe, request)
    frames, _ = our_video(engine, request)
    assert torch.isfinite(frames).all()
    assert torch.equal(frames, expected)


def test_both_wan_experts_take_part(
    tiny_engine: Callable[..., VideoEngine], tiny_request: Callable[..., VideoRequest]
) -> None:
    engine, request = tiny_engine("wan2.2"), tiny_request("wan2.2", steps=6)
    calls: list[str] = []
    pipe = engine_pipe(engine)
    hooks = [
        getattr(pipe, name).register_forward_hook(lambda *_, name=name: calls.append(name))
        for name in ("transformer", "transformer_2")
    ]
    rendered(engine, request)
    for hook in hooks:
        hook.remove()
    assert set(calls) == {"transformer", "transformer_2"}
    assert calls == sorted(calls)  # the high-noise expert first, then only the other
    assert len(calls) == 2 * request.steps


def test_wan21_picture_tokens_reach_the_attention(
    tiny_engine: Callable[..., VideoEngine], tiny_request: Callable[..., VideoRequest]
) -> None:
    model: Any = tiny_engine("wan2.1").model
    request = tiny_request("wan2.1")
    conditioning = model.encode(request)
    latents = model.prepare(request, conditioning)
    blank = dict(conditioning.tensors)
    blank["image_embeds"] = torch.zeros_like(blank["image_embeds"])
    without = type(conditioning)(
        picture=conditioning.picture, tensors=blank, scalars=conditioning.scalars
    )
    again = model.prepare(request, conditioning)
    seen, unseen = model.step(conditioning, latents), model.step(without, again)
    assert not torch.equal(seen.tensors["video"], unseen.tensors["video"])


def test_h3_leaves_unused_text_layers_out(tiny_engine: Callable[..., VideoEngine]) -> None:
    pipe = engine_pipe(tiny_engine("h3"))
    assert pipe.text_encoder.config.text_config.num_hidden_layers == pipe.text_encoder_layer + 1


def test_h3_keeps_its_pinned_modules_in_float32(tiny_engine: Callable[..., VideoEngine]) -> None:
    transformer = engine_pipe(tiny_engine("h3", "bfloat16")).transformer
    assert transformer.proj_in.weight.dtype == torch.float32
    assert transformer.transformer_blocks[0].attn.to_q.weight.dtype == torch.bfloat16


def test_weights_are_hashed(
    tiny_engine: Callable[..., VideoEngine], tiny_folder: Callable[[str], Path]
) -> None:
    weights = tiny_engine("wan2.2").model.recipe()["weights"]
    files = tiny_folder("wan2.2").rglob("*.safetensors")
    assert set(weights) == {str(file.relative_to(tiny_folder("wan2.2"))) for file in files}
    assert (
        weights["transformer/diffusion_pytorch_model.safetensors"]
        != (weights["transformer_2/diffusion_pytorch_model.safetensors"])
    )


def engine_pipe(engine: VideoEngine) -> Any:
    model: Any = engine.model
    return model.pipe
