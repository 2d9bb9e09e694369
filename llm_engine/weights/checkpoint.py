"""What a model needs of a weights file, whatever its format."""

# N rows (outputs), K columns (inputs), G groups of columns.

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

import torch

from kernels.ops.block_fp8_gemm.formats.reference import dequantise_blocks, unpack_mxfp4


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """A matrix as its file quantised it: w = scale * quant + minimum, per row and group.

    Shapes: quants (N, K), uint8 from 0 to 15 for 4 bits, int8 for 8 bits (6-bit values too);
    scales and minima (N, G) float32 with G = K / group; minima are None where they are all 0.
    A stack of matrices has its rows one below the other.
    """

    quants_NK: torch.Tensor
    scales_NG: torch.Tensor
    minima_NG: torch.Tensor | None
    bits: Literal[4, 8]
    group: Literal[16, 32]

    def dequantised(self) -> torch.Tensor:
        """The values, float32 (N, K): one rounding of the product and one of the sum."""
        num_rows, num_groups = self.scales_NG.shape
        groups = self.quants_NK.view(num_rows, num_groups, self.group).float()
        groups *= self.scales_NG[..., None]
        if self.minima_NG is not None:
            groups += self.minima_NG[..., None]
        return groups.view(num_rows, -1)


@dataclass(frozen=True, slots=True)
class ScaledWeights:
    """A matrix of small floats as its file stores it, and the scales that stretch them.

    Shapes: of "fp8" values (N, K) e4m3fn, scales (ceil(N/block), ceil(K/block)) float32, one for
    each square block; of "mxfp4" bytes (N, K/2) of two values each, the even column in the low
    nibble, and scales (N, K/32), bytes that stand for powers of two.
    """

    kind: Literal["fp8", "mxfp4"]
    values: torch.Tensor
    scales: torch.Tensor
    block: int

    @property
    def num_rows(self) -> int:
        """N."""
        return self.values.shape[0]

    def to(self, place: torch.device) -> Self:
        """The same, on a device."""
        return replace(self, values=self.values.to(place), scales=self.scales.to(place))

    def dequantised(self) -> torch.Tensor:
        """The values, float32 (N, K): a product of value and scale each, which is rounded once."""
        if self.kind == "mxfp4":
            return unpack_mxfp4(self.values, self.scales, torch.float32)
        return dequantise_blocks(self.values, self.scales, self.block, torch.float32)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file's header describes it; `kind` is the file's name of the format."""

    shape: tuple[int, ...]
    kind: str
    num_bytes: int


class Checkpoint(Protocol):
    """Named tensors, each read from disk when taken and never twice.

    Names and the configuration follow the Hugging Face layout of the model's family.
    """

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's configuration, as in `config.json`."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def keeps_rows(self) -> bool:
        """Whether matrices must stay row-major, since slices of them will be taken."""
        ...

    def has(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        ...

    def take(self, name: str) -> torch.Tensor:
        """Read a tensor, in the file's dtype or float32 where the file is quantised.

        Raises: UnsupportedModel if there is none; AssertionError if it was taken before.
        """
        ...

    def take_part(self, name: str, dim: int, part: range) -> torch.Tensor:
        """As `take`, but indices `part` of `dim` alone; what else is read depends on the format."""
        ...

    def take_packed(self, name: str) -> BlockWeights | None:
        """Read a tensor in its quantised form; None, and not taken, where it has none.

        Raises: as `take`.
        """
        ...

    def take_scaled(self, name: str) -> ScaledWeights | None:
        """Read a matrix of small floats with its scales; None, and not taken, where it has none.

        Raises: as `take`.
        """
        ...

    def stored(self, name: str) -> StoredTensor:
        """What the file's header says of a tensor, taken or not; nothing is read.

        Raises: UnsupportedModel if there is none.
        """
        ...

    def untaken(self) -> list[str]:
        """Names nobody has taken, sorted."""
        ...

    def close(self) -> None:
        """Give the files back; tensors taken stay valid."""
        ...


class UnpackedCheckpoint:
    """A checkpoint whose integers with scales come out dequantised only."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Wrap a checkpoint."""
        self._checkpoint = checkpoint
        self.config = checkpoint.config
        self.eos_token_ids = checkpoint.eos_token_ids
        self.keeps_rows = checkpoint.keeps_rows

    def has(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        return self._checkpoint.has(name)

    def take(self, name: str) -> torch.Tensor:
        """Read a tensor, dequantised."""
        return self._checkpoint.take(name)

    def take_part(self, name: str, dim: int, part: range) -> torch.Tensor:
        """Read a part of a tensor, dequantised."""
        return self._checkpoint.take_part(name, dim, part)

    def take_packed(self, name: str) -> BlockWeights | None:
        """None for every tensor that exists."""
        self._checkpoint.stored(name)
        return None

    def take_scaled(self, name: str) -> ScaledWeights | None:
        """Read a matrix of small floats with its scales, where it has any."""
        return self._checkpoint.take_scaled(name)

    def stored(self, name: str) -> StoredTensor:
        """What the file's header says of a tensor."""
        return self._checkpoint.stored(name)

    def untaken(self) -> list[str]:
        """Names nobody has taken."""
        return self._checkpoint.untaken()

    def close(self) -> None:
        """Give the files back."""
        self._checkpoint.close()


class PlacedCheckpoint(UnpackedCheckpoint):
    """The same, whose tensors come out on a device, one at a time: none is held twice."""

    def __init__(self, checkpoint: Checkpoint, place: torch.device) -> None:
        """Wrap a checkpoint."""
        super().__init__(checkpoint)
        self._place = place

    def take(self, name: str) -> torch.Tensor:
        """Read a tensor onto the device."""
        return super().take(name).to(self._place)

    def take_part(self, name: str, dim: int, part: range) -> torch.Tensor:
        """Read a part of a tensor onto the device."""
        return super().take_part(name, dim, part).to(self._place)

    def take_scaled(self, name: str) -> ScaledWeights | None:
        """Read a matrix of small floats with its scales onto the device, where it has any."""
        found = super().take_scaled(name)
        return None if found is None else found.to(self._place)


class TakenNames:
    """Keeps the promise that every tensor is read once."""

    def __init__(self, names: set[str]) -> None:
        """Start with all names untaken."""
        self._untaken = set(names)
        self._known = frozenset(names)

    def has(self, name: str) -> bool:
        """Whether the name exists, taken or not."""
        return name in self._known

    def mark(self, name: str) -> None:
        """Record that a tensor is being read."""
        assert name in self._untaken, f"tensor {name} read twice"
        self._untaken.remove(name)

    def untaken(self) -> list[str]:
        """Names not marked yet, sorted."""
        return sorted(self._untaken)
