"""Reading a folder of safetensors files, whole or sharded."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open

from llm_engine.errors import UnsupportedModel
from llm_engine.weights.checkpoint import (
    BlockWeights,
    ScaledWeights,
    StoredTensor,
    TakenNames,
)
from llm_engine.weights.fp8_blocks import FP8_KIND, MXFP4_METHOD, SCALE_SUFFIX, Fp8Blocks
from llm_engine.weights.safetensors_shard import stored_tensor

INDEX_NAME = "model.safetensors.index.json"
_KINDS = ("F64", "F32", "F16", "BF16")
_BYTES_KIND = "U8"


class SafetensorsCheckpoint:
    """A folder with `config.json` and one or more `.safetensors` files.

    The files' names are looked up when the first tensor is asked for, and a shard is opened
    (memory-mapped) when the first of its tensors is taken. Scales of FP8 blocks are no tensors of
    their own.
    Raises: UnsupportedModel if a file is missing or broken, or quantised in another way.
    """

    keeps_rows = False

    def __init__(self, folder: Path) -> None:
        """Read the configuration alone."""
        self.config: Mapping[str, Any] = _read_json(folder / "config.json")
        self.eos_token_ids = _eos_token_ids(folder, self.config)
        self._fp8 = Fp8Blocks.from_config(self.config)
        quantisation = self.config.get("quantization_config") or {}
        self._has_bytes = quantisation.get("quant_method") == MXFP4_METHOD
        self._folder = folder
        self._shards: dict[str, Any] = {}

    @cached_property
    def _shard_of(self) -> dict[str, str]:
        return self._map_names()

    @cached_property
    def _names(self) -> TakenNames:
        is_scale = self._fp8.is_scale if self._fp8 is not None else lambda name: False
        return TakenNames({name for name in self._shard_of if not is_scale(name)})

    def has(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        return self._names.has(name)

    def take(self, name: str) -> torch.Tensor:
        """Read one tensor in the file's dtype, or in float32 where it lies in FP8 blocks.

        The bytes of MXFP4 come out as they are.
        """
        scaled = self.take_scaled(name)
        if scaled is not None:
            return scaled.dequantised()
        kind = self.stored(name).kind
        is_bytes = kind == _BYTES_KIND and self._has_bytes
        if not is_bytes and kind not in _KINDS:
            raise UnsupportedModel(
                f"{self._folder} stores {name} as {kind}; supported: {', '.join(_KINDS)}, "
                f"and {FP8_KIND} with a quantization_config of method fp8"
            )
        self._names.mark(name)
        return self._read(name)

    def take_part(self, name: str, dim: int, part: range) -> torch.Tensor:
        """Read a part of a tensor; of one that lies in FP8 blocks, all of it on the way."""
        stored = self.stored(name)
        if stored.kind not in _KINDS:
            return self.take(name).narrow(dim, part.start, len(part)).clone()
        self._names.mark(name)
        index = (slice(None),) * dim + (slice(part.start, part.stop),)
        shard = self._open(self._shard_of[name])
        return cast(torch.Tensor, shard.get_slice(name)[index])

    def take_packed(self, name: str) -> BlockWeights | None:
        """None: values of these files are used as they are."""
        self.stored(name)
        return None

    def take_scaled(self, name: str) -> ScaledWeights | None:
        """Read a matrix in FP8 blocks with its scales; None, and not taken, for any other."""
        if self.stored(name).kind != FP8_KIND or self._fp8 is None:
            return None
        self._names.mark(name)
        if name + SCALE_SUFFIX not in self._shard_of:
            raise UnsupportedModel(f"{self._folder} has no {name + SCALE_SUFFIX} beside {name}")
        return self._fp8.scaled(name, self._read(name), self._read(name + SCALE_SUFFIX))

    def stored(self, name: str) -> StoredTensor:
        """What the shard's header says of a tensor."""
        if not self.has(name):
            raise UnsupportedModel(f"{self._folder} has no tensor {name}")
        try:
            return stored_tensor(self._open(self._shard_of[name]), name)
        except SafetensorError as error:
            raise self._misplaced(name) from error

    def untaken(self) -> list[str]:
        """Names nobody has taken."""
        return self._names.untaken()

    def close(self) -> None:
        """Unmap all shards."""
        self._shards.clear()

    def _read(self, name: str) -> torch.Tensor:
        try:
            return cast(torch.Tensor, self._open(self._shard_of[name]).get_tensor(name))
        except SafetensorError as error:
            raise self._misplaced(name) from error

    def _misplaced(self, name: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{INDEX_NAME} places {name} in {self._shard_of[name]}, which does not hold it: "
            f"fetch {self._folder} again"
        )

    def _map_names(self) -> dict[str, str]:
        index_path = self._folder / INDEX_NAME
        if index_path.is_file():
            return self._from_index(index_path)
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

    def _from_index(self, path: Path) -> dict[str, str]:
        """Names by shard; a shard's name may not lead out of the folder."""
        weight_map = _read_json(path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise UnsupportedModel(f"{path} has no weight_map")
        names = {str(key): str(value) for key, value in cast(dict[Any, Any], weight_map).items()}
        shards = sorted(set(names.values()))
        outside = [shard for shard in shards if Path(shard).name != shard]
        if outside:
            raise UnsupportedModel(f"{path} names {outside[0]!r}, which is no file name")
        missing = [shard for shard in shards if not (self._folder / shard).is_file()]
        if missing:
            raise UnsupportedModel(
                f"{len(missing)} of {len(shards)} shards that {path} names are missing: "
                f"{', '.join(missing[:5])}"
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
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedModel(f"cannot read {path}: it holds no JSON object")
    return cast(dict[str, Any], value)


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
