"""Finding a diffusers folder, locally or on the hub, and reading what it holds."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from video_engine.errors import ModelNotFound, UnsupportedModel

INDEX_NAMES = ("model_index.json", "modular_model_index.json")
# Weights as safetensors only, and no code: nothing from a folder is ever executed.
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
# MiniMax-H3 keeps a second transformer (62 GB) for another task.
_UNUSED = ("transformer_ref/*",)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SAMPLE_BYTES = 1 << 20
_FULL_HASH_BYTES = 256 << 20
_NUM_SAMPLES = 64


def find_folder(model: str, *, built_in: tuple[str, ...] = ()) -> Path:
    """The folder of `model`: a local one if there is one, else a snapshot from the hub.

    Raises: ModelNotFound listing each place that was tried and why it failed.
    """
    tried = [f"built-in name: the built-in models are {', '.join(built_in)}"]
    local = Path(model).expanduser()
    if any((local / name).is_file() for name in INDEX_NAMES):
        return local
    if local.is_dir():
        tried.append(f"folder {local}: holds neither {' nor '.join(INDEX_NAMES)}")
    elif _HUB_ID.fullmatch(model):
        folder, reason = _snapshot(model)
        if folder is not None:
            return folder
        tried += [f"folder {local}: no such folder", f"hub id {model}: {reason}"]
    else:
        tried.append(f"folder {local}: no such folder")
        tried.append(f"hub id: {model!r} is not of the form owner/name")
    raise ModelNotFound(f"no model {model!r}. Tried: " + "; ".join(tried))


def read_index(folder: Path) -> dict[str, Any]:
    """The folder's pipeline index as a dict.

    Raises: UnsupportedModel if it is not a JSON object.
    """
    for name in INDEX_NAMES:
        path = folder / name
        if path.is_file():
            try:
                index = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise UnsupportedModel(f"{path} is not JSON: {error}") from error
            if isinstance(index, dict):
                return index
            raise UnsupportedModel(f"{path} holds {type(index).__name__}, not an object")
    raise ModelNotFound(f"{folder} holds neither {' nor '.join(INDEX_NAMES)}")


def read_pipeline_class(folder: Path) -> str:
    """The pipeline class that the folder was saved from."""
    return str(read_index(folder).get("_class_name"))


def weight_hashes(folder: Path) -> dict[str, str]:
    """A hash for every weights file, so that a recipe names the exact weights.

    "sha256:…" is of the whole file (up to 256 MiB); "sampled-sha256:…" of a larger one's size and
    64 evenly spaced MiB, the last one included: quick, and no two checkpoints in practice agree.
    """
    files = sorted(folder.rglob("*.safetensors"))
    return {str(path.relative_to(folder)): _file_hash(path) for path in files}


def _file_hash(path: Path) -> str:
    size_bytes = path.stat().st_size
    if size_bytes <= _FULL_HASH_BYTES:
        with path.open("rb") as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256(str(size_bytes).encode())
    with path.open("rb") as file:
        for index in range(_NUM_SAMPLES):
            file.seek((size_bytes - _SAMPLE_BYTES) * index // (_NUM_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return "sampled-sha256:" + digest.hexdigest()


def _snapshot(hub_id: str) -> tuple[Path | None, str]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = snapshot_download(
            hub_id, allow_patterns=list(_HUB_FILES), ignore_patterns=list(_UNUSED)
        )
        return Path(folder), ""
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        return None, f"{type(error).__name__}: {reason[:300]}"
