"""The one place with the messages about shapes and dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def check_shape(tensor: torch.Tensor, layout: str, sizes: Mapping[str, int], *, name: str) -> None:
    """Refuse a tensor whose shape is not `layout`, e.g. "T D" with sizes {"D": 576}.

    Letters missing from `sizes` may have any size.

    Raises:
        ShapeError: names the tensor, its shape and the shape it must have.
    """
    letters = layout.split()
    fits = len(letters) == tensor.dim() and all(
        letter not in sizes or sizes[letter] == size
        for letter, size in zip(letters, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(f"{letter}={sizes.get(letter, 'any')}" for letter in letters)
        raise ShapeError(f"{name} has shape {tuple(tensor.shape)}; it must be ({wanted})")


def check_dtype(tensor: torch.Tensor, allowed: tuple[torch.dtype, ...], *, name: str) -> None:
    """Refuse a tensor of another dtype.

    Raises:
        ShapeError: names the tensor, its dtype and the allowed ones.
    """
    if tensor.dtype not in allowed:
        options = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise ShapeError(f"{name} is {tensor.dtype}; it must be one of {options}")
