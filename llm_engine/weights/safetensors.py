"""Reading a folder of safetensors files, whole or sharded."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open

from llm_engine.errors import UnsupportedModel
from llm_engine.weights.checkpoint import TakenNames

INDEX_NAME = "model.safetensors.index.json"


class SafetensorsCheckpoint:
    """A folder with `config.json` and one or more `.safetensors` files.

    The files' names are looked up when the first tensor is asked for, and a shard is opened
    (memory-mapped) when the first of its tensors is taken.
    Raises: UnsupportedModel if a file is missing or broken.
    """

    def __init__(self, folder: Path) -> None:
        """Read the configuration alone."""
        self.config: Mapping[str, Any] = _read_json(folder / "config.json")
        self.eos_token_ids = _eos_token_ids(folder, self.config)
        self._folder = folder
        self._shards: dict[str, Any] = {}

    @cached_property
    def _shard_of(self) -> dict[str, str]:
        return self._map_names()

    @cached_property
    def _names(self) -> TakenNames:
        return TakenNames(set(self._shard_of))

    def has(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        return self._names.has(name)

    def take(self, name: str) -> torch.Tensor:
        """Read one tensor in the file's dtype."""
        if not self._names.has(name):
            raise UnsupportedModel(f"{self._folder} has no tensor {name}")
        self._names.mark(name)
        shard = self._open(self._shard_of[name])
        return cast(torch.Tensor, shard.get_tensor(name))

    def untaken(self) -> list[str]:
        """Names nobody has taken."""
        return self._names.untaken()

    def close(self) -> None:
        """Unmap all shards."""
        self._shards.clear()

    def _map_names(self) -> dict[str, str]:
        index_path = self._folder / INDEX_NAME
        if index_path.is_file():
            return dict(_read_json(index_path)["weight_map"])
        names: dict[str, str] = {}
        for path in sorted(self._folder.glob("*.safetensors")):
            keys = cast(list[str], self._open(path.name).keys())
            names.update(dict.fromkeys(keys, path.name))
        if not names:
            raise UnsupportedModel(
                f"{self._folder} holds no .safetensors file; pickled weights (.bin, .pt) are "
                "refused because loading them can run code"
            )
        return names

    def _open(self, file_name: str) -> Any:  # noqa: ANN401 - safetensors exports no type
        if file_name not in self._shards:
            try:
                self._shards[file_name] = safe_open(
                    str(self._folder / file_name), framework="pt", device="cpu"
                )
            except (OSError, SafetensorError) as error:
                raise UnsupportedModel(
                    f"cannot read {self._folder / file_name}: {error}"
                ) from error
        return self._shards[file_name]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"cannot read {path}: {error}") from error


def _eos_token_ids(folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    ids: set[int] = set()
    generation_path = folder / "generation_config.json"
    sources: list[Mapping[str, Any]] = [config]
    if generation_path.is_file():
        sources.append(_read_json(generation_path))
    for source in sources:
        value = source.get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(ids)
