"""The factor of the scores."""

from __future__ import annotations

from kernels.errors import ShapeError


def softmax_scale(scale: float | None, head_dim: int) -> float:
    """`scale`, or 1/sqrt(head_dim) without one.

    Raises:
        ShapeError: it is not positive; the kernels take maxima before scaling.
    """
    if scale is None:
        return head_dim**-0.5
    if scale <= 0:
        raise ShapeError(f"scale is {scale}; it must be positive")
    return scale
