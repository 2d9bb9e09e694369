"""Loading MiniMax-H3 from a folder: the first-frame workflow's components, and no others.

Source: diffusers 0.42.1, modular_pipelines/minimax_h3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLMiniMaxH3,
    AutoencoderKLMiniMaxH3Audio,
    MiniMaxH3ModularPipeline,
    MiniMaxH3Scheduler,
    MiniMaxH3Transformer3DModel,
)
from diffusers.modular_pipelines.minimax_h3.modular_blocks_minimax_h3 import MiniMaxH3Blocks
from transformers import AutoConfig, Qwen2Tokenizer, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from video_engine.errors import ModelNotFound
from video_engine.models.folder import read_index
from video_engine.models.pipelines import Stock, complete

# What a folder's index may say; the released values stand where it is silent.
_RELEASED = {"min_duration": 5.0, "max_duration": 15.0, "text_encoder_layer": 50}
_FOLDERS = (
    "transformer", "vae", "audio_vae", "text_encoder", "tokenizer", "processor", "scheduler",
    "audio_scheduler",
)  # fmt: skip


class H3Pipeline(MiniMaxH3ModularPipeline):
    """The stock box of components, its three limits taken from the folder's index."""

    facts: dict[str, Any]

    @property
    def min_duration(self) -> float:
        """Shortest clip, in seconds."""
        return self.facts["min_duration"]

    @property
    def max_duration(self) -> float:
        """Longest clip, in seconds."""
        return self.facts["max_duration"]

    @property
    def text_encoder_layer(self) -> Stock:
        """Which hidden state of the text encoder conditions the transformer."""
        return self.facts["text_encoder_layer"]


class PictureReader:
    """The picture half of Qwen3-VL's processor, on PIL.

    The whole processor needs torchvision for its video half, and with torchvision it would resize
    pictures by other arithmetic; this one gives the same pixels on every machine.
    """

    def __init__(self, image_processor: Qwen2VLImageProcessorPil, image_token_id: int) -> None:
        """Keep the picture processor and the id that stands for a picture token."""
        self.image_processor = image_processor
        self.image_token_id = image_token_id

    def create_mm_token_type_ids(self, batch: list[list[int]]) -> list[list[int]]:
        """1 where a token stands for a part of a picture, 0 elsewhere."""
        return [[int(token == self.image_token_id) for token in ids] for ids in batch]


def load_components(folder: Path, dtype: torch.dtype) -> H3Pipeline:
    """Load the eight components of the first-frame workflow.

    Numerics: `dtype`, save the modules that the stock classes pin to float32.

    Raises: ModelNotFound if a component's folder or its safetensors are missing or damaged.
    """
    missing = [name for name in _FOLDERS if not (folder / name).is_dir()]
    if missing:
        raise ModelNotFound(f"{folder} lacks the component folders {', '.join(missing)}")
    index = read_index(folder)
    pipe = H3Pipeline(blocks=MiniMaxH3Blocks().get_workflow("fl2va"))
    pipe.facts = {name: index.get(name, value) for name, value in _RELEASED.items()}
    canvas = ("canvas_short_edge", "canvas_max_pixels")
    with complete(folder):
        pipe.update_components(
            **_load_models(folder, dtype, pipe.text_encoder_layer),
            **_load_readers(folder),
            **{name: index[name] for name in canvas if name in index},
        )
    return pipe


def _load_models(folder: Path, dtype: torch.dtype, text_layer: int) -> dict[str, Any]:
    classes = {
        "transformer": MiniMaxH3Transformer3DModel,
        "vae": AutoencoderKLMiniMaxH3,
        "audio_vae": AutoencoderKLMiniMaxH3Audio,
    }
    models: dict[str, Stock] = {
        name: model_class.from_pretrained(folder / name, dtype=dtype, use_safetensors=True)
        for name, model_class in classes.items()
    }
    # Layers above the one that is read change nothing: they are not loaded. One more is kept,
    # since the last layer's output is the only one that passes through the final norm.
    config = AutoConfig.from_pretrained(folder / "text_encoder")
    num_layers = config.text_config.num_hidden_layers
    config.text_config.num_hidden_layers = min(num_layers, text_layer + 1)
    models["text_encoder"] = Qwen3VLForConditionalGeneration.from_pretrained(
        folder / "text_encoder", config=config, dtype=dtype, use_safetensors=True
    )
    return models


def _load_readers(folder: Path) -> dict[str, Any]:
    tokenizer = Qwen2Tokenizer.from_pretrained(folder / "tokenizer")
    pictures = Qwen2VLImageProcessorPil.from_pretrained(folder / "processor")
    return {
        "tokenizer": tokenizer,
        "processor": PictureReader(pictures, tokenizer.convert_tokens_to_ids("<|image_pad|>")),
        "scheduler": MiniMaxH3Scheduler.from_pretrained(folder / "scheduler"),
        "audio_scheduler": MiniMaxH3Scheduler.from_pretrained(folder / "audio_scheduler"),
    }
