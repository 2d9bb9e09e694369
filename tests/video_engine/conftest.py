"""Tiny models in folders, loaded once a run, and requests that fit them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from video_engine.config import EngineConfig
from video_engine.engine import VideoEngine
from video_engine.types import VideoRequest

_SIZES = {"wan2.1": 32, "wan2.2": 32, "wan5b": 64, "ltx": 32, "ltx-t": 32, "h3": 64}


@pytest.fixture(scope="session")
def tiny_models() -> ModuleType:
    """The builders beside this file; no test folder is a package."""
    path = Path(__file__).with_name("tiny_models.py")
    spec = importlib.util.spec_from_file_location("video_tiny_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_folder(
    tiny_models: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """kind → the folder of a tiny model, saved once."""
    folders: dict[str, Path] = {}

    def folder_of(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("models") / kind
            tiny_models.save(kind, folders[kind])
        return folders[kind]

    return folder_of


@pytest.fixture(scope="session")
def tiny_engine(tiny_folder: Callable[[str], Path]) -> Callable[..., VideoEngine]:
    """(kind, dtype) → an engine over the tiny model, loaded once."""
    engines: dict[tuple[str, str], VideoEngine] = {}

    def engine_of(kind: str, dtype: Any = "float32") -> VideoEngine:
        if (kind, dtype) not in engines:
            config = EngineConfig(model=str(tiny_folder(kind)), dtype=dtype)
            engines[kind, dtype] = VideoEngine.load(config)
        return engines[kind, dtype]

    return engine_of


@pytest.fixture(scope="session")
def tiny_request() -> Callable[..., VideoRequest]:
    """kind → a request of three grid points; keywords replace fields."""

    def request_for(kind: str, **changes: Any) -> VideoRequest:
        side = _SIZES[kind]
        has_guidance = kind != "h3"
        fields: dict[str, Any] = {
            "image": noise_picture(side, side),
            "prompt": "a small boat",
            "negative_prompt": "noise" if has_guidance else "",
            "width": side,
            "height": side,
            "num_frames": 9 if has_guidance else 22,
            "fps": 24.0,
            "steps": 3,
            "seed": 7,
            "guidance_scale": 6.0 if has_guidance else None,
        }
        return VideoRequest(**(fields | changes))

    return request_for


def noise_picture(width: int, height: int) -> Image.Image:
    """A picture in which every pixel counts."""
    random = np.random.default_rng(0)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
