"""Which class loads which model. Names and families are plain dicts, imported when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from video_engine.errors import UnsupportedModel
from video_engine.models.folder import find_folder, read_pipeline_class

if TYPE_CHECKING:
    from video_engine.config import EngineConfig
    from video_engine.models.base import VideoModel

# name → "module:Class" with `load(device, dtype)`
BUILT_IN = {"motion-small": "video_engine.models.motion_small.model:MotionSmall"}

# pipeline class of a diffusers folder → "module:Class" with `load(folder, source, device, dtype)`
FAMILIES = {
    "WanImageToVideoPipeline": "video_engine.models.wan.model:WanVideo",
    "LTXImageToVideoPipeline": "video_engine.models.ltx.model:LTXVideo",
    "MiniMaxH3ModularPipeline": "video_engine.models.minimax_h3.model:MiniMaxH3Video",
}


def load_model(config: EngineConfig) -> VideoModel:
    """Load a built-in model, a local diffusers folder, or a hub id, in this order.

    Raises: ModelNotFound, UnsupportedModel.
    """
    if config.num_threads is not None:
        import torch

        torch.set_num_threads(config.num_threads)
    if config.model in BUILT_IN:
        return _imported(BUILT_IN[config.model]).load(device=config.device, dtype=config.dtype)
    folder = find_folder(config.model, built_in=tuple(BUILT_IN))
    pipeline_class = read_pipeline_class(folder)
    if pipeline_class not in FAMILIES:
        raise UnsupportedModel(
            f"{config.model} holds a {pipeline_class}; this engine runs "
            f"{', '.join(sorted(FAMILIES))} and the built-in {', '.join(sorted(BUILT_IN))}"
        )
    family = _imported(FAMILIES[pipeline_class])
    return family.load(folder, source=config.model, device=config.device, dtype=config.dtype)


def _imported(path: str) -> Any:  # noqa: ANN401  a class with the `load` its dict promises
    module_name, class_name = path.split(":")
    return getattr(import_module(module_name), class_name)
