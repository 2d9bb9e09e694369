"""Activations on the wire in int8: blocks of 128 values with their scale in the payload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.ops.int8_wire.layout import BLOCK, BLOCK_BYTES, Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["BLOCK", "BLOCK_BYTES", "Layout", "decode", "encode", "layout_of", "round_trip"]


def layout_of(x: torch.Tensor, axis: int = 0, sizes: Sequence[int] | None = None) -> Layout:
    """The layout of x cut along `axis` into pieces of `sizes`; one piece without them.

    For an all-to-all over heads, axis 1 of (T, H, D) and the heads of each rank; on the way back,
    axis 0 and the tokens of each rank. The receiver states the layout of what it receives: the
    pieces of all senders, each cut from the same axis that joins them.
    Raises: ShapeError where the sizes do not fill the axis.
    """
    pieces = (x.shape[axis],) if sizes is None else tuple(sizes)
    return Layout(shape=tuple(x.shape), dtype=x.dtype, axis=axis, sizes=pieces)


def encode(x: torch.Tensor, layout: Layout | None = None, *, impl: str = "auto") -> torch.Tensor:
    """q = round(x / s) of each block of 128 values with s = amax / 127 rounded up to 16 bits.

    Shapes: x as the layout says, any strides; returns payload (B, 132) uint8: 128 values, then
    the scale as float32. Pieces lie one after the other, `layout.blocks` of each.
    Numerics: |decoded - x| ≤ s / 2; encoding what was decoded gives the same payload, bit for bit;
    equal on every device.
    Cost: reads x once, writes 1.03 bytes a value.
    Raises: ShapeError when x is not what the layout says; ImplUnavailable when `impl` cannot.
    Source: symmetric block quantisation; QSGD, Alistarh et al. 2017, arXiv:1610.02132.
    """
    from kernels.errors import ShapeError

    layout = layout or layout_of(x.reshape(-1))
    if layout.num_outer * layout.shape[layout.axis] * layout.num_inner != x.numel():
        raise ShapeError(f"x has shape {tuple(x.shape)}; its layout is of {layout.shape}")
    payload_BY, _ = _run(x.reshape(layout.shape), None, layout, impl, wants_values=False)
    return payload_BY


def decode(payload_BY: torch.Tensor, layout: Layout, *, impl: str = "auto") -> torch.Tensor:
    """x = q · s in the layout's dtype: the inverse of `encode`, pieces joined along their axis.

    Shapes: payload (B, 132) uint8; returns the layout's shape, contiguous.
    Raises: ShapeError when the payload does not have the layout's blocks.
    """
    from kernels.checks import check_shape

    check_shape(payload_BY, "B Y", {"B": layout.num_blocks, "Y": BLOCK_BYTES}, name="payload")
    _, x = _run(None, payload_BY, layout, impl, wants_values=True)
    assert x is not None
    return x


def round_trip(
    x: torch.Tensor, layout: Layout | None = None, *, impl: str = "auto"
) -> tuple[torch.Tensor, torch.Tensor]:
    """The payload of x and what its receivers will decode.

    The owner goes on with the decoded values too, so that all ranks hold the same numbers.
    Shapes: payload as `encode`; values in x's shape and dtype.
    """
    shape = x.shape
    layout = layout or layout_of(x.reshape(-1))
    x = x.reshape(layout.shape)
    payload_BY, values = _run(x, None, layout, impl, wants_values=True)
    assert values is not None
    return payload_BY, values.reshape(shape)


def _run(
    x: torch.Tensor | None,
    payload_BY: torch.Tensor | None,
    layout: Layout,
    impl: str,
    *,
    wants_values: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    from kernels.dtypes import DTYPE_NAMES
    from kernels.ops.int8_wire.spec import SPEC
    from kernels.runtime import implementation

    given = x if x is not None else payload_BY
    assert given is not None
    count = layout.num_outer * layout.shape[layout.axis] * layout.num_inner
    options = {"pack": "all_to_all" if len(layout.sizes) > 1 else "none"}
    dtype = DTYPE_NAMES[layout.dtype]
    run = implementation(SPEC, given.device, dtype, sizes={"N": count}, options=options, asked=impl)
    return run(x, payload_BY, layout, wants_values=wants_values)
