"""Loading stock components from a folder: safetensors only, no code, one dtype a component."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from video_engine.errors import ModelNotFound

# An object or class of diffusers or transformers. They declare few types, and wrong ones.
Stock = Any


def load_pipeline(
    pipeline_class: Stock, folder: Path, dtype: torch.dtype, full_precision: tuple[str, ...]
) -> Stock:
    """Load `folder` in `dtype`, the components in `full_precision` in float32.

    Raises: ModelNotFound if a component's weights are missing, damaged or not safetensors.
    """
    dtypes = {"default": dtype, **dict.fromkeys(full_precision, torch.float32)}
    with complete(folder):
        pipe = pipeline_class.from_pretrained(
            folder, dtype=dtypes, use_safetensors=True, local_files_only=True
        )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def load_part(part_class: Stock, folder: Path, dtype: torch.dtype, device: str) -> Stock:
    """Load one component of a folder in `dtype`, save what its class keeps in float32.

    Raises: ModelNotFound if its weights are missing, damaged or not safetensors.
    """
    with complete(folder):
        part = part_class.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, local_files_only=True
        )
    return part.to(device).eval()


@contextmanager
def complete(folder: Path) -> Generator[None]:
    """Turn what the libraries raise for missing or damaged files into ModelNotFound."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ModelNotFound(f"{folder} cannot be loaded as it stands: {error}") from error
