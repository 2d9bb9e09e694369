"""MiniMax-H3: one packed sequence of video, audio, text and picture rows; adaLN by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.layer_groups import (
    LayerGroup,
    ModelShape,
    OpUse,
    total_parameters,
    total_weight_bytes,
    use,
)
from video_engine.plan.blocks import Rows, blocks, network, phase
from video_engine.plan.request import ClipRequest

_PIXELS = 32  # of a row's side: 16 of the autoencoder, 2 of the patch
_FRAMES, _LATENTS, _EXTRA_FRAMES, _EXTRA_LATENTS = 17, 5, 5, 2  # 17n + 5 frames, 5n + 2 latents
_FPS, _AUDIO_ROWS_PER_S = 24, 80  # 40 latents a second for each of two channels
_TEXT_ROWS = 256
_TIMES = 4  # different times in one step: video, audio, picture, reference
_MODULATIONS, _MODALITIES = 6, 3
_TEXT_ENCODER_WEIGHTS = 31_050_000_000  # 62.1 GB in bf16; its config is not published
_VIDEO_ENCODER_WEIGHTS, _VIDEO_DECODER_WEIGHTS = 180_000_000, 2_420_000_000
_AUDIO_WEIGHTS = 151_000_000
_DEFAULT_CLIP = (1344, 768, 124)


def describe(components: Mapping[str, Any], clip: ClipRequest) -> ModelShape:
    """The stages of the first-frame workflow: encoding, denoising, decoding."""
    model = components["transformer"]
    clip = clip.or_default(*_DEFAULT_CLIP)
    video, rows = _sequence(clip)
    groups = _groups(model, Rows(rows, clip.dtype))
    picture = (clip.width // _PIXELS) * (clip.height // _PIXELS)
    encode = (
        network(
            "text_encoder", "text encoder", _TEXT_ROWS + picture, _TEXT_ENCODER_WEIGHTS, clip.dtype
        ),
        network("vae_encode", "picture encoder", picture, _VIDEO_ENCODER_WEIGHTS, clip.dtype),
    )
    decode = (
        network("vae_decode", "video decoder", video * 4, _VIDEO_DECODER_WEIGHTS, clip.dtype),
        network("vae_decode", "audio decoder", rows - video, _AUDIO_WEIGHTS, clip.dtype),
    )
    return ModelShape(
        name="",
        family="minimax_h3",
        phases=(
            phase("encode", _TEXT_ROWS + picture, encode),
            phase("denoise", rows, groups),
            phase("decode", video, decode),
        ),
        rows=(),
        parameters=total_parameters(groups),
        weight_bytes=total_weight_bytes(groups) + total_weight_bytes((*encode, *decode)),
        notes=(
            "13.0 of the 33.1 billion weights see the time alone and can be folded into tables",
        ),
    )


def _sequence(clip: ClipRequest) -> tuple[int, int]:
    """Rows of the video, and of the whole packed sequence with one keyframe."""
    frame_rows = (clip.width // _PIXELS) * (clip.height // _PIXELS)
    chunks = (clip.num_frames - _EXTRA_FRAMES) // _FRAMES
    video = (chunks * _LATENTS + _EXTRA_LATENTS) * frame_rows
    audio = round(clip.num_frames / _FPS * _AUDIO_ROWS_PER_S)
    return video, video + audio + 2 * frame_rows + _TEXT_ROWS


def _groups(model: Mapping[str, Any], rows: Rows) -> tuple[LayerGroup, ...]:
    width, time = int(model["hidden_size"]), int(model["time_embed_dim"])
    hidden = int(model["time_embed_hidden_dim"])
    latent = int(model["in_channels"]) * 4
    text = Rows(_TEXT_ROWS, rows.dtype)
    entry = (
        rows.linear(width, latent),
        rows.linear(width, int(model["audio_in_channels"])),
        text.linear(width, int(model["text_dim"])),
        rows.linear(hidden, int(model["freq_dim"]), rows=_TIMES),
        rows.linear(time, hidden, rows=_TIMES),
    )
    leave = (rows.modulate(width, "rms"), rows.linear(latent, width))
    return (
        LayerGroup(name="rows, time and text", layers=(), uses=entry),
        blocks("refiner blocks", int(model["num_refiner_layers"]), _plain_block(model, text)),
        blocks("blocks", int(model["num_layers"]), _block(model, rows)),
        LayerGroup(name="output projections", layers=(), uses=leave),
    )


def _attention(model: Mapping[str, Any], rows: Rows, rotated: int) -> tuple[OpUse, ...]:
    heads, head_dim = int(model["num_attention_heads"]), int(model["attention_head_dim"])
    width = int(model["hidden_size"])
    rotary = (rows.rotary(heads, head_dim, rotated, "half"),) if rotated else ()
    return (
        rows.linear(heads * head_dim, width, count=3),
        rows.head_norm(heads, head_dim, count=2),
        *rotary,
        rows.attention(heads, head_dim),
        rows.linear(width, heads * head_dim),
    )


def _feed_forward(model: Mapping[str, Any], rows: Rows) -> tuple[OpUse, ...]:
    width, inner = int(model["hidden_size"]), int(model["ffn_dim"])
    return (
        rows.linear(2 * inner, width),
        use("swiglu", rows.dtype, {"T": rows.count, "I": inner}),
        rows.linear(width, inner),
    )


def _block(model: Mapping[str, Any], rows: Rows) -> tuple[OpUse, ...]:
    width, time = int(model["hidden_size"]), int(model["time_embed_dim"])
    rotated = 2 * 3 * int(model["rope_freq_dim"])
    return (
        rows.linear(_MODULATIONS * width * _MODALITIES, time, rows=_TIMES),
        rows.modulate(width, "rms"),
        *_attention(model, rows, rotated),
        rows.modulate(width, "rms", residual=True),
        *_feed_forward(model, rows),
        rows.modulate(width, "none", residual=True),
    )


def _plain_block(model: Mapping[str, Any], rows: Rows) -> tuple[OpUse, ...]:
    width = int(model["hidden_size"])
    norm = rows.norm(width)
    return (norm, *_attention(model, rows, 0), norm, *_feed_forward(model, rows))
