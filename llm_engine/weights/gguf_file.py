"""The layout of a GGUF file: its metadata, and where each tensor's bytes lie.

Source: the GGUF specification in ggml, versions 2 and 3, little-endian.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as it is stored: bytes of shape (rows, bytes of a row), in blocks of its kind."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class StringArray:
    """An array of strings in the metadata, read when asked for: vocabularies are long."""

    mapped: mmap.mmap
    start: int
    count: int

    def __len__(self) -> int:
        """How many strings it holds."""
        return self.count

    def read(self) -> list[str]:
        """Decode all of them."""
        mapped, position, size_of = self.mapped, self.start, struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(self.count):
            begin = position + 8
            position = begin + size_of(mapped, position)[0]
            strings.append(mapped[begin:position].decode("utf-8"))
        return strings


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata by key, arrays of strings unread; tensors by name, memory-mapped."""

    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Read the metadata and map the file.

        Raises: OSError, ValueError, struct.error when it is no whole GGUF file.
        """
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = _Reader(mapped)
        if reader.take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version, num_tensors, num_fields = reader.unpack("IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"it is of version {version}; versions 2 and 3 can be read")
        fields = {reader.string(): reader.value(*reader.unpack("I")) for _ in range(num_fields)}
        infos = {reader.string(): reader.tensor_info() for _ in range(num_tensors)}
        alignment = int(fields.get("general.alignment", _DEFAULT_ALIGNMENT))
        start = -(-reader.position // alignment) * alignment
        return cls(fields, {name: _tensor(mapped, start, info) for name, info in infos.items()})


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int


class _Reader:
    """A position in the file, and what is read from there on."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self.position = 0

    def take(self, size: int) -> bytes:
        self.position += size
        if self.position > len(self._mapped):
            raise ValueError("it ends within its metadata")
        return self._mapped[self.position - size : self.position]

    def unpack(self, formats: str) -> tuple[Any, ...]:
        layout = f"<{formats}"
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def string(self) -> str:
        (size,) = self.unpack("Q")
        return self.take(size).decode("utf-8")

    def value(self, kind: int) -> Any:  # noqa: ANN401 - a field may be of any type
        if kind in _SCALARS:
            return self.unpack(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"it holds a field of the unknown type {kind}")
        kind, count = self.unpack("IQ")
        if kind in _SCALARS:
            return list(self.unpack(f"{count}{_SCALARS[kind]}"))
        if kind == _STRING:
            return self._skip_strings(count)
        return [self.value(kind) for _ in range(count)]

    def tensor_info(self) -> _TensorInfo:
        (num_dims,) = self.unpack("I")
        dims = self.unpack(f"{num_dims}Q")
        kind, offset = self.unpack("IQ")
        return _TensorInfo(GGMLQuantizationType(kind), tuple(reversed(dims)), offset)

    def _skip_strings(self, count: int) -> StringArray:
        mapped, start, position = self._mapped, self.position, self.position
        size_of = struct.Struct("<Q").unpack_from
        for _ in range(count):
            position += 8 + size_of(mapped, position)[0]
        self.position = position
        return StringArray(mapped, start, count)


def _tensor(mapped: mmap.mmap, start: int, info: _TensorInfo) -> GgufTensor:
    block_elements, block_bytes = GGML_QUANT_SIZES[info.kind]
    num_rows = int(np.prod(info.shape[:-1], dtype=np.int64))
    row_bytes = info.shape[-1] // block_elements * block_bytes
    data = np.frombuffer(mapped, np.uint8, num_rows * row_bytes, start + info.offset)
    return GgufTensor(info.kind, info.shape, data.reshape(num_rows, row_bytes))
