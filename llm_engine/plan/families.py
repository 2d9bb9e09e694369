"""From a name, a folder or a config to a ModelShape. Families are imported when asked for."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from kernels.layer_groups import ModelShape
from llm_engine.errors import ModelNotFound, UnsupportedModel
from llm_engine.plan.config_fields import ConfigFields
from llm_engine.plan.request import PlanRequest

PRESETS = Path(__file__).parent.parent / "presets"

# model_type of a config.json -> module with `describe(fields, request)`
FAMILIES: Mapping[str, str] = {
    "llama": "llm_engine.plan.gqa",
    "qwen3": "llm_engine.plan.gqa",
    "qwen3_moe": "llm_engine.plan.gqa",
    "gpt_oss": "llm_engine.plan.gpt_oss",
    "deepseek_v32": "llm_engine.plan.mla",
    "glm_moe_dsa": "llm_engine.plan.mla",
    "deepseek_v4": "llm_engine.plan.deepseek_v4",
    "deepseek_v41": "llm_engine.plan.deepseek_v41",
    "glm5_next": "llm_engine.plan.glm5_next",
}


def preset_names() -> tuple[str, ...]:
    """The models whose config comes with the package, sorted."""
    return tuple(sorted(file.stem for file in PRESETS.glob("*.json")))


def preset(name: str) -> dict[str, Any]:
    """The config of a preset.

    Raises: ModelNotFound with the names there are.
    """
    if name not in preset_names():
        raise ModelNotFound(f"no preset {name!r}; there are: {', '.join(preset_names())}")
    return read_config(PRESETS / f"{name}.json")


def read_config(file: Path) -> dict[str, Any]:
    """A `config.json` as a mapping.

    Raises: UnsupportedModel if it cannot be read or is not a JSON object.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{file} is no readable JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"{file} holds {type(raw).__name__}, not an object")
    return cast("dict[str, Any]", raw)


def is_language_model(raw: Mapping[str, Any]) -> bool:
    """Whether a config is one of a family known here."""
    return raw.get("model_type") in FAMILIES


def is_quantised(raw: Mapping[str, Any]) -> bool:
    """Whether the checkpoint stores fp8 weights."""
    return ConfigFields(raw).block is not None


def describe(raw: Mapping[str, Any], request: PlanRequest, *, name: str) -> ModelShape:
    """The layers, op uses and cached rows of the model that `raw` describes.

    Raises: UnsupportedModel for a family or a config that is not known; the message says which.
    """
    family = str(raw.get("model_type"))
    if family not in FAMILIES:
        raise UnsupportedModel(f"no family {family!r}; known: {', '.join(sorted(FAMILIES))}")
    module = importlib.import_module(FAMILIES[family])
    shape: ModelShape = module.describe(ConfigFields(raw), request)
    return replace(shape, name=name, family=family)
