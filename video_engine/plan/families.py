"""From a name or a folder to a ModelShape. Families are imported when asked for."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from kernels.layer_groups import ModelShape
from video_engine.errors import ModelNotFound, UnsupportedModel
from video_engine.plan.request import ClipRequest

PRESETS = Path(__file__).parent.parent / "presets"
# models whose own folder is part of the package
SHIPPED: Mapping[str, Path] = {
    "motion-small": Path(__file__).parent.parent / "models" / "motion_small" / "weights",
}
INDEX_NAMES = ("model_index.json", "modular_model_index.json")

# pipeline class -> module with `describe(components, clip)`
FAMILIES: Mapping[str, str] = {
    "WanImageToVideoPipeline": "video_engine.plan.wan",
    "MiniMaxH3ModularPipeline": "video_engine.plan.minimax_h3",
    "MotionSmall": "video_engine.plan.motion_small",
}


def preset_names() -> tuple[str, ...]:
    """The models whose configs come with the package, sorted."""
    return tuple(sorted([*SHIPPED, *(file.stem for file in PRESETS.glob("*.json"))]))


def preset(name: str) -> dict[str, Any]:
    """The components of a preset: "model_index" and one config for each component.

    Raises: ModelNotFound with the names there are.
    """
    if name not in preset_names():
        raise ModelNotFound(f"no preset {name!r}; there are: {', '.join(preset_names())}")
    return read_folder(SHIPPED[name]) if name in SHIPPED else _read(PRESETS / f"{name}.json")


def read_folder(folder: Path) -> dict[str, Any]:
    """The components of a diffusers folder, each from its own config.json.

    Raises: UnsupportedModel where the index or a config cannot be read.
    """
    index = next((folder / name for name in INDEX_NAMES if (folder / name).is_file()), None)
    if index is None:
        raise UnsupportedModel(f"{folder} holds neither {' nor '.join(INDEX_NAMES)}")
    configs = sorted(folder.glob("*/config.json"))
    own = {file.stem.removesuffix("_config"): _read(file) for file in folder.glob("*_config.json")}
    parts = {file.parent.name: _read(file) for file in configs}
    return {"model_index": _read(index)} | own | parts


def describe(components: Mapping[str, Any], clip: ClipRequest, *, name: str) -> ModelShape:
    """The stages and op uses of the pipeline that `components` describe.

    Raises: UnsupportedModel for a pipeline that is not known, or a config that lacks a field.
    """
    pipeline = str((components.get("model_index") or {}).get("_class_name"))
    if pipeline not in FAMILIES:
        raise UnsupportedModel(f"no pipeline {pipeline!r}; known: {', '.join(sorted(FAMILIES))}")
    module = importlib.import_module(FAMILIES[pipeline])
    try:
        shape: ModelShape = module.describe(components, clip)
    except KeyError as error:
        raise UnsupportedModel(f"{name}: the configs have no {error}") from error
    return replace(shape, name=name)


def _read(file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{file} is no readable JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"{file} holds {type(raw).__name__}, not an object")
    return cast("dict[str, Any]", raw)
