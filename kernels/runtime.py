"""The implementation that serves a call on the device of its tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernels.dispatch import AUTO, choose
from kernels.hardware.detect import detect
from kernels.hardware.traits import DeviceTraits, load_traits
from kernels.spec import Case, OpSpec
from kernels.tuned import tuned_table

_Items = tuple[tuple[str, Any], ...]


def implementation(
    spec: OpSpec,
    device: torch.device,
    dtype: str,
    *,
    sizes: Mapping[str, int],
    options: Mapping[str, str],
    asked: str = AUTO,
) -> Callable[..., Any]:
    """The function that computes `spec` for this case on this device.

    Raises:
        ImplUnavailable, NoImplementation: as `kernels.dispatch.choose`.
    """
    items = tuple(sizes.items()), tuple(options.items())
    return _resolve(spec, device.type, device.index or 0, dtype, *items, asked)


@functools.lru_cache(maxsize=4096)
def _resolve(
    spec: OpSpec, kind: str, index: int, dtype: str, sizes: _Items, options: _Items, asked: str
) -> Callable[..., Any]:
    case = Case(dtype=dtype, sizes=dict(sizes), options=dict(options))
    traits = device_traits(kind, index)
    decision = choose(spec, case, traits, asked=asked, tuned=tuned_table(traits.name))
    return spec.find(decision.chosen).load()


@functools.lru_cache(maxsize=16)
def device_traits(kind: str, index: int = 0) -> DeviceTraits:
    """The traits of a torch device of this process, by its exact family name.

    Raises:
        UnknownName: no row of the table describes it.
    """
    if kind == "cpu":
        return load_traits(detect(readers=()).machine.families[-1])
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        return load_traits(properties.gcnArchName.partition(":")[0])
    return load_traits(f"sm_{properties.major}{properties.minor}")
