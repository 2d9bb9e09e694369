"""What rank 0 tells the others to compute, and the tensors of it as one message."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import torch

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
        torch.uint8, torch.bool,
    )
}  # fmt: skip
_ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of its values."""
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize

    @property
    def room_bytes(self) -> int:
        """In a message, where the next one begins at a boundary."""
        return -(-self.size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES

    def view(self, message: torch.Tensor, begin: int) -> torch.Tensor:
        """The tensor whose values begin at this byte of a message."""
        raw = message[begin : begin + self.size_bytes]
        return raw.view(_DTYPES[self.dtype]).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCommand:
    """One forward of every branch through one of a model's transformers.

    `shared` are the inputs that all branches have, `branches` those of each alone.
    """

    part: str
    shared: tuple[TensorSpec, ...]
    branches: tuple[tuple[TensorSpec, ...], ...]

    @classmethod
    def of(
        cls,
        part: str,
        shared: Mapping[str, torch.Tensor],
        branches: Sequence[Mapping[str, torch.Tensor]],
    ) -> Self:
        """The command for these inputs."""
        return cls(
            part=part, shared=_specs(shared), branches=tuple(_specs(branch) for branch in branches)
        )

    @property
    def size_bytes(self) -> int:
        """Of the message with the tensors' values."""
        return sum(spec.room_bytes for spec in self._all)

    def encode(self) -> bytes:
        """As bytes, without values."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The command that was encoded."""
        fields = json.loads(data)
        branches = tuple(_read(specs) for specs in fields["branches"])
        return cls(part=fields["part"], shared=_read(fields["shared"]), branches=branches)

    def packed(
        self,
        shared: Mapping[str, torch.Tensor],
        branches: Sequence[Mapping[str, torch.Tensor]],
        device: torch.device,
    ) -> torch.Tensor:
        """All values as one tensor of bytes on the device."""
        message = torch.empty(self.size_bytes, dtype=torch.uint8, device=device)
        tensors = [x for inputs in (shared, *branches) for x in inputs.values()]
        begin = 0
        for spec, x in zip(self._all, tensors, strict=True):
            spec.view(message, begin).copy_(x)
            begin += spec.room_bytes
        return message

    def unpacked(
        self, message: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
        """Shared inputs and those of each branch, as views of the message."""
        views: list[torch.Tensor] = []
        begin = 0
        for spec in self._all:
            views.append(spec.view(message, begin))
            begin += spec.room_bytes
        found = iter(views)
        shared = {spec.name: next(found) for spec in self.shared}
        return shared, [{spec.name: next(found) for spec in specs} for specs in self.branches]

    @property
    def _all(self) -> list[TensorSpec]:
        return [spec for specs in (self.shared, *self.branches) for spec in specs]


def _specs(inputs: Mapping[str, torch.Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, str(x.dtype).removeprefix("torch."), tuple(x.shape))
        for name, x in inputs.items()
    )


def _read(specs: Sequence[Mapping[str, object]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(str(spec["name"]), str(spec["dtype"]), tuple(spec["shape"]))  # type: ignore[arg-type]
        for spec in specs
    )
