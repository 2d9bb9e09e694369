"""The sizes and options of a call, once its shapes have been checked."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernels.checks import check_shape
from kernels.dtypes import DTYPE_NAMES
from kernels.errors import ShapeError
from kernels.ops.rotary_insert.arguments import STYLES, HeadNorm, Insertion, Rotation


def case_of(
    q_THD: torch.Tensor,
    k_TKD: torch.Tensor | None,
    v_TKD: torch.Tensor | None,
    cache_PZSKD: torch.Tensor | None,
    rotation: Rotation,
    norm: HeadNorm | None,
    insertion: Insertion | None,
) -> tuple[Mapping[str, int], Mapping[str, str]]:
    """Sizes and options of a call.

    Raises:
        ShapeError: a tensor does not fit the others; the message names both shapes.
    """
    check_shape(q_THD, "T H D", {}, name="q")
    sizes = dict(zip("THD", q_THD.shape, strict=True))
    sizes |= {"K": 0 if k_TKD is None else k_TKD.shape[1], "R": rotation.width, "page": 0}
    _check_heads(k_TKD, v_TKD, norm, sizes)
    _check_rotation(rotation, sizes)
    options = {
        "style": rotation.style,
        "qk_norm": "none" if norm is None else "yes",
        "inverse": "yes" if rotation.is_inverse else "none",
        "cache": "none",
    }
    if cache_PZSKD is not None or insertion is not None:
        sizes["page"] = _check_cache(k_TKD, v_TKD, cache_PZSKD, insertion, sizes)
        options["cache"] = "none" if cache_PZSKD is None else DTYPE_NAMES[cache_PZSKD.dtype]
    return sizes, options


def _check_heads(
    k_TKD: torch.Tensor | None,
    v_TKD: torch.Tensor | None,
    norm: HeadNorm | None,
    sizes: Mapping[str, int],
) -> None:
    if k_TKD is not None:
        check_shape(k_TKD, "T K D", sizes, name="k")
    if v_TKD is not None:
        check_shape(v_TKD, "T K D", sizes, name="v")
    for name in ("q", "k") if norm is not None else ():
        weight = getattr(norm, f"{name}_weight")
        if weight is not None:
            check_shape(weight, "D", sizes, name=f"{name} weight")


def _check_rotation(rotation: Rotation, sizes: Mapping[str, int]) -> None:
    if rotation.style not in STYLES:
        raise ShapeError(f"style is {rotation.style!r}; it must be one of {', '.join(STYLES)}")
    if rotation.width > sizes["D"]:
        raise ShapeError(f"{rotation.width} dimensions turn; a head has {sizes['D']}")
    table = {"P": rotation.cos.shape[0], "R/2": rotation.width // 2}
    check_shape(rotation.sin, "P R/2", table, name="sin")
    if rotation.positions is not None:
        check_shape(rotation.positions, "T", sizes, name="positions")
    elif table["P"] < sizes["T"]:
        raise ShapeError(f"cos has {table['P']} rows for {sizes['T']} tokens without positions")


def _check_cache(
    k_TKD: torch.Tensor | None,
    v_TKD: torch.Tensor | None,
    cache_PZSKD: torch.Tensor | None,
    insertion: Insertion | None,
    sizes: Mapping[str, int],
) -> int:
    if k_TKD is None or cache_PZSKD is None or insertion is None:
        raise ShapeError("an insertion needs k, a cache and slots; one of them is missing")
    streams = {"S": 1 if v_TKD is None else 2}
    check_shape(cache_PZSKD, "P Z S K D", dict(sizes) | streams, name="cache")
    check_shape(insertion.slots, "T", sizes, name="slots")
    if not cache_PZSKD.is_contiguous():
        raise ShapeError("the cache must be contiguous: a page is one block of memory")
    return cache_PZSKD.shape[1]
