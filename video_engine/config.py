"""What an engine is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which model, where, and in which number format.

    `model` is a built-in name, a diffusers folder, or a hub id. `dtype="auto"` means float32 on
    the CPU (the same pixels on every machine) and bfloat16 on an accelerator; autoencoders and
    picture encoders stay in float32 either way. `num_threads` sets torch's intra-op threads for
    the whole process; None leaves them alone. `layout` is over how many ranks a step is computed,
    as in "cfg2,ulysses2"; empty is one rank.
    """

    model: str = "motion-small"
    device: str = "cpu"
    dtype: DType = "auto"
    num_threads: int | None = None
    layout: str = ""

    def __post_init__(self) -> None:
        """Refuse values that could only fail later, under a less clear name."""
        if not self.model:
            raise ValueError("model is empty; give a built-in name, a folder or a hub id")
        if self.dtype not in get_args(DType):
            raise ValueError(f"dtype {self.dtype!r} is unknown; use one of {get_args(DType)}")
        if self.num_threads is not None and self.num_threads < 1:
            raise ValueError(f"num_threads {self.num_threads} is below 1; use None for the default")
