"""Writes the averaged weights of a checkpoint as a folder that motion-small loads."""

import json
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
from diffusers.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor

from video_engine.models.motion_small.config import CONFIG_NAME, MotionConfig
from video_engine.models.motion_small.network import TRAIN_TIMESTEPS, transformer_config
from video_engine.models.motion_small.text_encoder import TENSORS_NAME, TextEncoder


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        k.removeprefix(prefix): v.bfloat16() for k, v in tensors.items() if k.startswith(prefix)
    }


def export_weights(checkpoint: Path, folder: Path) -> None:
    """Stores transformer, scheduler, text encoder and settings in bfloat16, diffusers-like."""
    state = torch.load(checkpoint, weights_only=True)
    config = MotionConfig.from_json(state["motion"])
    transformer_folder, text_folder = folder / "transformer", folder / "text_encoder"
    for part_folder in (transformer_folder, text_folder):
        part_folder.mkdir(parents=True, exist_ok=True)
    WanTransformer3DModel(**transformer_config(config)).save_config(transformer_folder)
    tensors = _part(state["average"], "transformer.")
    save_file(tensors, transformer_folder / SAFETENSORS_WEIGHTS_NAME, {"format": "pt"})
    FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=int(TRAIN_TIMESTEPS), shift=config.timestep_shift
    ).save_pretrained(folder / "scheduler")
    (text_folder / "config.json").write_text(TextEncoder(config.text).config_json())
    save_file(_part(state["average"], "text_encoder."), text_folder / TENSORS_NAME)
    (folder / CONFIG_NAME).write_text(config.to_json())
    index = {
        "_class_name": "MotionSmall",
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["video_engine.models.motion_small.text_encoder", "TextEncoder"],
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
