"""Wan 2.2: self-attention over the clip, cross-attention to the text, adaLN."""

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

_MODULATIONS = 6
_VAE_WEIGHTS = {16: 127_000_000, 48: 705_000_000}  # of AutoencoderKLWan by latent channels
_DEFAULT_CLIP = {16: (1280, 720, 81), 48: (1280, 704, 121)}


def describe(components: Mapping[str, Any], clip: ClipRequest) -> ModelShape:
    """The stages of WanImageToVideoPipeline: text, denoising, decoding."""
    model, vae = components["transformer"], components["vae"]
    channels = int(vae["z_dim"])
    clip = clip.or_default(*_DEFAULT_CLIP[channels])
    rows = Rows(_sequence(model, vae, clip), clip.dtype)
    groups = transformer_groups(model, rows, clip.text_tokens)
    num_experts = 2 if components.get("transformer_2") else 1
    weights = _VAE_WEIGHTS[channels]
    text = network(
        "text_encoder", "text encoder", clip.text_tokens,
        text_weights(components["text_encoder"]), clip.dtype,
    )  # fmt: skip
    encode = network("vae_encode", "picture encoder", rows.count, weights // 2, "fp32")
    decode = network("vae_decode", "autoencoder", rows.count, weights // 2, "fp32")
    return ModelShape(
        name="",
        family="wan",
        phases=(
            phase("encode", clip.text_tokens, (text, encode)),
            phase("denoise", rows.count, groups),
            phase("decode", rows.count, (decode,)),
        ),
        rows=(),
        parameters=num_experts * total_parameters(groups),
        weight_bytes=num_experts * total_weight_bytes(groups)
        + total_weight_bytes((text, encode, decode)),
        notes=("two transformers of equal shape, one at a time",) if num_experts > 1 else (),
    )


def _sequence(model: Mapping[str, Any], vae: Mapping[str, Any], clip: ClipRequest) -> int:
    """Rows of the clip: latent frames times patches."""
    frames = (clip.num_frames - 1) // int(vae["scale_factor_temporal"]) + 1
    across = int(vae["scale_factor_spatial"]) * int(model["patch_size"][1])
    return frames * (clip.width // across) * (clip.height // across)


def transformer_groups(
    model: Mapping[str, Any], rows: Rows, text_tokens: int
) -> tuple[LayerGroup, ...]:
    """The layers of a WanTransformer3DModel over `rows` video rows."""
    heads, head_dim = int(model["num_attention_heads"]), int(model["attention_head_dim"])
    width, inner = heads * head_dim, int(model["ffn_dim"])
    text = Rows(text_tokens, rows.dtype)
    patch = 1
    for size in model["patch_size"]:
        patch *= int(size)
    entry = (
        rows.linear(width, int(model["in_channels"]) * patch),
        rows.linear(width, int(model["freq_dim"]), rows=1),
        rows.linear(width, width, rows=1),
        rows.linear(_MODULATIONS * width, width, rows=1),
        text.linear(width, int(model["text_dim"])),
        text.linear(width, width),
    )
    leave = (rows.modulate(width, "layer"), rows.linear(int(model["out_channels"]) * patch, width))
    return (
        LayerGroup(name="patches, time and text", layers=(), uses=entry),
        blocks("blocks", int(model["num_layers"]), _block(rows, text, heads, head_dim, inner)),
        LayerGroup(name="output projection", layers=(), uses=leave),
    )


def _block(rows: Rows, text: Rows, heads: int, head_dim: int, inner: int) -> tuple[OpUse, ...]:
    width = heads * head_dim
    own = (
        rows.modulate(width, "layer"),
        rows.linear(width, width, count=3),
        rows.norm(width, count=2),
        rows.rotary(heads, head_dim, head_dim, "interleaved"),
        rows.attention(heads, head_dim),
        rows.linear(width, width),
    )
    cross = (
        rows.modulate(width, "layer", residual=True, table=False),
        rows.linear(width, width),
        text.linear(width, width, count=2),
        rows.norm(width),
        text.norm(width),
        rows.attention(heads, head_dim, keys=text.count),
        rows.linear(width, width),
    )
    feed_forward = (
        rows.modulate(width, "layer", residual=True),
        rows.linear(inner, width),
        use("gelu", rows.dtype, {"T": rows.count, "I": inner}),
        rows.linear(width, inner),
        rows.modulate(width, "none", residual=True),
    )
    return own + cross + feed_forward


def text_weights(encoder: Mapping[str, Any]) -> int:
    """Weights of a UMT5 encoder: gated MLPs, four projections, the embedding."""
    width, inner = int(encoder["d_model"]), int(encoder["d_ff"])
    attention = 4 * width * int(encoder["num_heads"]) * int(encoder["d_kv"])
    layers = int(encoder["num_layers"]) * (attention + 3 * width * inner)
    return layers + int(encoder["vocab_size"]) * width
