"""Which class loads which model. Names and families are plain dicts, imported when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from video_engine.errors import UnsupportedModel
from video_engine.models.folder import find_folder, read_pipeline_class

if TYPE_CHECKING:
    from video_engine.config import EngineConfig
    from video_engine.models.base import VideoModel
    from video_engine.models.denoiser import Lay
    from video_engine.models.pipelines import Stock

# name → "module:Class" with `load(device, dtype)`
BUILT_IN = {"motion-small": "video_engine.models.motion_small.model:MotionSmall"}

# pipeline class of a diffusers folder → "module:Class" with `load(folder, source, device, dtype)`
FAMILIES = {
    "WanImageToVideoPipeline": "video_engine.models.wan.model:WanVideo",
    "LTXImageToVideoPipeline": "video_engine.models.ltx.model:LTXVideo",
    "MiniMaxH3ModularPipeline": "video_engine.models.minimax_h3.model:MiniMaxH3Video",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model before it is loaded. `kind` is a key of BUILT_IN or FAMILIES, `folder` of the latter.

    `name` is what was asked for.
    """

    name: str
    kind: str
    folder: Path | None

    @property
    def place(self) -> dict[str, Any]:
        """What `load` and `load_transformers` of its class take to find the weights."""
        return {} if self.folder is None else {"folder": self.folder}

    def model_class(self) -> Any:  # noqa: ANN401  a class with what the dicts promise
        """The class of its family."""
        return _imported((BUILT_IN | FAMILIES)[self.kind])


def find_model(config: EngineConfig) -> FoundModel:
    """A built-in model, a local diffusers folder, or a hub id, in this order.

    Raises: ModelNotFound, UnsupportedModel.
    """
    if config.model in BUILT_IN:
        return FoundModel(name=config.model, kind=config.model, folder=None)
    folder = find_folder(config.model, built_in=tuple(BUILT_IN))
    pipeline_class = read_pipeline_class(folder)
    if pipeline_class not in FAMILIES:
        raise UnsupportedModel(
            f"{config.model} holds a {pipeline_class}; this engine runs "
            f"{', '.join(sorted(FAMILIES))} and the built-in {', '.join(sorted(BUILT_IN))}"
        )
    return FoundModel(name=config.model, kind=pipeline_class, folder=folder)


def load_model(
    config: EngineConfig, device: str | None = None, lay: Lay | None = None
) -> VideoModel:
    """Load a model on `device`, the config's unless given.

    `lay` lays its transformers over ranks; None for one rank, and for families that know no other.
    Raises: ModelNotFound, UnsupportedModel.
    """
    if config.num_threads is not None:
        import torch

        torch.set_num_threads(config.num_threads)
    found = find_model(config)
    source = {} if found.folder is None else {"source": config.model}
    laid = {} if lay is None else {"lay": lay}
    return found.model_class().load(
        **found.place, **source, **laid, device=device or config.device, dtype=config.dtype
    )


def load_transformers(config: EngineConfig, device: str) -> Mapping[str, Stock]:
    """The transformers of a model alone, by name: what a rank that follows needs of it.

    Raises: ModelNotFound, UnsupportedModel.
    """
    found = find_model(config)
    return found.model_class().load_transformers(**found.place, device=device, dtype=config.dtype)


def _imported(path: str) -> Any:  # noqa: ANN401  a class with the `load` its dict promises
    module_name, class_name = path.split(":")
    return getattr(import_module(module_name), class_name)
