"""What a model needs of a weights file, whatever its format."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch


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

    def has(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        ...

    def take(self, name: str) -> torch.Tensor:
        """Read a tensor, in the file's dtype or float32 where the file is quantised.

        Raises: UnsupportedModel if there is none; AssertionError if it was taken before.
        """
        ...

    def untaken(self) -> list[str]:
        """Names nobody has taken, sorted."""
        ...

    def close(self) -> None:
        """Give the files back; tensors taken stay valid."""
        ...


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
