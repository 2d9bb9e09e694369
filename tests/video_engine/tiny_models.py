"""Tiny image-to-video models with random weights, built as stock diffusers pipelines.

Each `build_*` gives a pipeline; `save` puts it into a folder that the engine loads. Sizes follow
the released models' structure (two experts, CLIP tokens, per-token timesteps, packed audio rows).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

_T5_ENCODER: dict[str, Any] = {
    "vocab_size": 300, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "dropout_rate": 0.0, "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip

_WAN: dict[str, Any] = {
    "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "text_dim": 32,
    "freq_dim": 256, "ffn_dim": 32, "num_layers": 2, "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 64,
}  # fmt: skip
# 2.1: 16 noise + 20 condition channels; added_kv_proj_dim equals the inner width.
_WAN21: dict[str, Any] = {
    **_WAN,
    "in_channels": 36,
    "out_channels": 16,
    "image_dim": 16,
    "added_kv_proj_dim": 24,
}
_WAN22: dict[str, Any] = {**_WAN, "in_channels": 36, "out_channels": 16}
_WAN5B: dict[str, Any] = {**_WAN, "in_channels": 48, "out_channels": 48}
_WAN_VAE: dict[str, Any] = {
    "base_dim": 3, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
}  # fmt: skip
_WAN5B_VAE: dict[str, Any] = {
    "base_dim": 3, "z_dim": 48, "in_channels": 12, "out_channels": 12, "is_residual": True,
    "patch_size": 2, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48,
    "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "scale_factor_spatial": 16,
    "scale_factor_temporal": 4, "temperal_downsample": [False, True, True],
}  # fmt: skip
_WAN21_CLIP: dict[str, Any] = {
    "hidden_size": 16, "projection_dim": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 32, "intermediate_size": 16, "patch_size": 8,
}  # fmt: skip
_WAN_SCHEDULER: dict[str, Any] = {
    "prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0,
}  # fmt: skip

_LTX: dict[str, Any] = {
    "in_channels": 8, "out_channels": 8, "patch_size": 1, "patch_size_t": 1,
    "num_attention_heads": 4, "attention_head_dim": 8, "cross_attention_dim": 32, "num_layers": 2,
    "caption_channels": 32,
}  # fmt: skip
_LTX_VAE: dict[str, Any] = {
    "in_channels": 3, "out_channels": 3, "latent_channels": 8, "block_out_channels": (8,) * 4,
    "decoder_block_out_channels": (8,) * 4, "layers_per_block": (1,) * 5,
    "decoder_layers_per_block": (1,) * 5,
    "spatio_temporal_scaling": (True, True, False, False),
    "decoder_spatio_temporal_scaling": (True, True, False, False),
    "decoder_inject_noise": (False,) * 5, "upsample_residual": (False,) * 4,
    "upsample_factor": (1,) * 4, "timestep_conditioning": False, "patch_size": 1,
    "patch_size_t": 1, "encoder_causal": True, "decoder_causal": False,
}  # fmt: skip


def byte_tokenizer(max_length: int) -> Any:
    """A T5-like tokenizer over bytes: pad 0, end 1, unknown 2, no merges."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *alphabet])}
    raw = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        model_max_length=max_length,
    )  # fmt: skip


def build_wan(kind: str) -> Any:
    """A WanImageToVideoPipeline of kind "2.1" (CLIP), "2.2" (two experts) or "5b"."""
    from diffusers import (
        AutoencoderKLWan,
        UniPCMultistepScheduler,
        WanImageToVideoPipeline,
        WanTransformer3DModel,
    )
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    dit = {"2.1": _WAN21, "2.2": _WAN22, "5b": _WAN5B}[kind]
    image_encoder, image_processor = _clip() if kind == "2.1" else (None, None)
    components: dict[str, Any] = {
        "tokenizer": byte_tokenizer(512),
        "text_encoder": UMT5EncoderModel(UMT5Config(**_T5_ENCODER)).eval(),
        "vae": AutoencoderKLWan(**(_WAN5B_VAE if kind == "5b" else _WAN_VAE)).eval(),
        "scheduler": UniPCMultistepScheduler(**_WAN_SCHEDULER),
        "transformer": WanTransformer3DModel(**dit).eval(),
        "transformer_2": WanTransformer3DModel(**dit).eval() if kind == "2.2" else None,
        "image_encoder": image_encoder,
        "image_processor": image_processor,
    }
    boundary_ratio = 0.875 if kind == "2.2" else None
    return WanImageToVideoPipeline(
        **components, boundary_ratio=boundary_ratio, expand_timesteps=kind == "5b"
    )


def build_ltx(*, has_decode_timestep: bool = False) -> Any:
    """An LTXImageToVideoPipeline; later releases' decoder takes a timestep."""
    from diffusers import (
        AutoencoderKLLTXVideo,
        FlowMatchEulerDiscreteScheduler,
        LTXImageToVideoPipeline,
        LTXVideoTransformer3DModel,
    )
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    vae: dict[str, Any] = _LTX_VAE | {"timestep_conditioning": has_decode_timestep}
    return LTXImageToVideoPipeline(
        tokenizer=byte_tokenizer(128),
        text_encoder=T5EncoderModel(T5Config(**_T5_ENCODER)).eval(),
        vae=whole_frames(AutoencoderKLLTXVideo(**vae).eval()),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        transformer=LTXVideoTransformer3DModel(**_LTX).eval(),
    )


def whole_frames(vae: Any) -> Any:
    """Turn off the LTX autoencoder's tiling over time, which this tiny one is too small for."""
    vae.use_framewise_encoding = False
    vae.use_framewise_decoding = False
    return vae


def _clip() -> tuple[Any, Any]:
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel

    encoder = CLIPVisionModel(CLIPVisionConfig(**_WAN21_CLIP)).eval()
    processor = CLIPImageProcessor(
        crop_size={"height": 32, "width": 32}, size={"shortest_edge": 32}
    )
    return encoder, processor


# MiniMax-H3: inner width 4 * 16 differs from hidden 48, as in the released model.
_H3: dict[str, Any] = {
    "num_attention_heads": 4, "attention_head_dim": 16, "hidden_size": 48, "num_layers": 2,
    "num_refiner_layers": 1, "ffn_dim": 96, "in_channels": 4, "audio_in_channels": 8,
    "patch_size": (1, 2, 2), "text_dim": 32, "freq_dim": 32, "time_embed_hidden_dim": 48,
    "time_embed_dim": 24, "rope_freq_dim": 2,
}  # fmt: skip
_H3_VAE: dict[str, Any] = {
    "latent_channels": 4, "block_out_channels": (8,) * 6, "layers_per_block": 1,
    "norm_num_groups": 4, "decoder_num_layers": 2, "decoder_num_attention_heads": 2,
    "decoder_attention_head_dim": 16, "decoder_num_register_tokens": 2, "decoder_ffn_mult": 2,
    "latents_mean": (0.0,) * 4, "latents_std": (1.0,) * 4,
}  # fmt: skip
_H3_AUDIO_VAE: dict[str, Any] = {
    "encoder_dim": 4, "encoder_rates": (2, 2), "latent_dim": 32, "latent_channels": 8,
    "num_attention_heads": 2, "decoder_dim": 16, "decoder_rates": (2, 2),
    "decoder_kernel_sizes": (4, 4), "resblock_kernel_sizes": (3,),
    "resblock_dilation_sizes": ((1, 3),), "sampling_rate": 160, "latents_mean": [0.0] * 8,
    "latents_std": [1.0] * 8,
}  # fmt: skip
# One layer more than the engine needs to load: it must leave the last one out.
_H3_TEXT: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": 0, "eos_token_id": 0,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2],
        "mrope_interleaved": True,
    },
}  # fmt: skip
_H3_VISION: dict[str, Any] = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32,
    "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
_H3_PICTURES: dict[str, Any] = {
    "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 64,
    "max_pixels": 1024,
}  # fmt: skip
_QWEN_SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
_QWEN_IDS: dict[str, Any] = {
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
}  # fmt: skip
# The tiny model's own limits, as its folder's index states them.
H3_FACTS: dict[str, Any] = {"min_duration": 0.5, "text_encoder_layer": 2}


class Processor:
    """Stands in for Qwen3VLProcessor, whose video half needs torchvision."""

    def __init__(self, image_processor: Any, image_token_id: int) -> None:
        self.image_processor = image_processor
        self.image_token_id = image_token_id

    def create_mm_token_type_ids(self, batch: list[list[int]]) -> list[list[int]]:
        return [[1 if token == self.image_token_id else 0 for token in ids] for ids in batch]


def build_h3() -> Any:
    """The stock modular pipeline (workflow fl2va) with limits that fit the tiny model."""
    from diffusers import MiniMaxH3ModularPipeline, MiniMaxH3Scheduler
    from diffusers.modular_pipelines.minimax_h3.modular_blocks_minimax_h3 import MiniMaxH3Blocks
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    class TinyH3(MiniMaxH3ModularPipeline):
        min_duration: Any = H3_FACTS["min_duration"]
        text_encoder_layer: Any = H3_FACTS["text_encoder_layer"]

    torch.manual_seed(0)
    tokenizer = qwen_tokenizer()
    pictures = Qwen2VLImageProcessorPil(**_H3_PICTURES)
    pipe = TinyH3(blocks=MiniMaxH3Blocks().get_workflow("fl2va"))
    pipe.update_components(
        tokenizer=tokenizer,
        processor=Processor(pictures, tokenizer.convert_tokens_to_ids("<|image_pad|>")),
        scheduler=MiniMaxH3Scheduler(shift=12.0),
        audio_scheduler=MiniMaxH3Scheduler(shift=3.0),
        **_h3_models(tokenizer),
    )
    return pipe


def qwen_tokenizer() -> Any:
    """A Qwen tokenizer over bytes, with Qwen's ten special tokens."""
    from transformers import Qwen2Tokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={character: i for i, character in enumerate(alphabet)},
        merges=[],
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": _QWEN_SPECIALS})
    return tokenizer


def save_h3(pipe: Any, folder: Path) -> None:
    """Save as a released folder looks, with the tiny limits in its index."""
    pipe.save_pretrained(str(folder), overwrite_modular_index=True)
    pipe.processor.image_processor.save_pretrained(folder / "processor")
    path = folder / "modular_model_index.json"
    index = json.loads(path.read_text())
    index |= {"_class_name": "MiniMaxH3ModularPipeline", **H3_FACTS}
    path.write_text(json.dumps(index))


def _h3_models(tokenizer: Any) -> dict[str, Any]:
    from diffusers import (
        AutoencoderKLMiniMaxH3,
        AutoencoderKLMiniMaxH3Audio,
        MiniMaxH3Transformer3DModel,
    )
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _QWEN_IDS.items()}
    config = Qwen3VLConfig(text_config=_H3_TEXT, vision_config=_H3_VISION, **ids)
    return {
        "transformer": MiniMaxH3Transformer3DModel(**_H3).eval(),
        "vae": AutoencoderKLMiniMaxH3(**_H3_VAE).eval(),
        "audio_vae": AutoencoderKLMiniMaxH3Audio(**_H3_AUDIO_VAE).eval(),
        "text_encoder": Qwen3VLForConditionalGeneration(config).eval(),
    }


def build(kind: str) -> Any:
    """The stock pipeline of a kind: "wan2.1", "wan2.2", "wan5b", "ltx", "ltx-t" or "h3"."""
    if kind == "h3":
        return build_h3()
    if kind.startswith("ltx"):
        return build_ltx(has_decode_timestep=kind == "ltx-t")
    return build_wan(kind.removeprefix("wan"))


def save(kind: str, folder: Path) -> None:
    """Put a kind's pipeline into a folder."""
    if kind == "h3":
        save_h3(build_h3(), folder)
    else:
        build(kind).save_pretrained(folder)


def stock_video(kind: str, pipe: Any, request: Any) -> tuple[torch.Tensor, Any]:
    """The stock pipeline's own answer: frames (F, 3, H, W) in 0…1, and sound or None."""
    pipe.set_progress_bar_config(disable=True)
    arguments: dict[str, Any] = {
        "image": request.image,
        "prompt": request.prompt,
        "height": request.height,
        "width": request.width,
        "num_frames": request.num_frames,
        "num_inference_steps": request.steps,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
        "output_type": "pt",
    }
    if kind == "h3":
        state = pipe(**arguments)
        return state.get("videos")[0], state.get("audio")[0].numpy()
    arguments["negative_prompt"] = request.negative_prompt
    arguments["guidance_scale"] = request.guidance_scale
    if kind.startswith("ltx"):
        arguments["frame_rate"] = request.fps
    return pipe(**arguments).frames[0], None
