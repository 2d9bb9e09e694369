"""Number formats and the two habits every family shares on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from video_engine.models.pipelines import Stock

if TYPE_CHECKING:
    from collections.abc import Mapping


def choose_dtype(dtype: str, device: str) -> torch.dtype:
    """The torch type of a config's `dtype`; "auto" is float32 on a CPU, else bfloat16."""
    if dtype == "auto":
        return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    return getattr(torch, dtype)


def finish(device: torch.device) -> None:
    """Wait for the device, so that a step that is reported done is done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def to_uint8(video_FCHW: torch.Tensor) -> np.ndarray:
    """Frames in 0…1 to bytes, rounded to nearest.

    Shapes: (F, C, H, W) float to (F, H, W, C) uint8.
    """
    scaled = (video_FCHW.float().clamp(0.0, 1.0) * 255.0).round()
    return scaled.to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu().numpy()


def plain_config(component: Stock) -> dict[str, Any]:
    """A component's class and settings as JSON values, private keys left out."""
    config: Mapping[str, Any] = component.config
    settings = {name: _plain(value) for name, value in config.items() if name[:1] != "_"}
    return {"class": type(component).__name__, **settings}


def _plain(value: Any) -> Any:  # noqa: ANN401  JSON in, JSON out
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
