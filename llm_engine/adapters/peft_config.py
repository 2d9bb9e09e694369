"""The `adapter_config.json` of a LoRA adapter.

Source: PEFT's file format; Hu et al. 2021, arXiv:2106.09685 (LoRA); Kalajdzievski 2023,
arXiv:2312.03732 (rank-stabilised scaling).
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from llm_engine.errors import UnsupportedModel

# What the engine would silently leave out, by the value that leaves nothing out.
_NEUTRAL: Mapping[str, object] = {
    "use_dora": False,
    "modules_to_save": None,
    "layer_replication": None,
    "trainable_token_indices": None,
    "fan_in_fan_out": False,
    "bias": "none",
    "lora_bias": False,
}


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Ranks and scalings of an adapter, for all modules and by module."""

    rank: int
    alpha: float
    is_rank_stabilised: bool
    rank_by_pattern: Mapping[str, int]
    alpha_by_pattern: Mapping[str, float]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the folder's configuration.

        Raises: UnsupportedModel if it is missing, broken, or of an adapter that is not plain LoRA.
        """
        path = folder / "adapter_config.json"
        try:
            raw = cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
            kind = raw.get("peft_type")
            if kind != "LORA":
                raise UnsupportedModel(f"{path} is of type {kind!r}; supported: LORA")
            for name, neutral in _NEUTRAL.items():
                if raw.get(name, neutral) not in (neutral, None, []):
                    raise UnsupportedModel(f"{path} sets {name} to {raw[name]!r}: not supported")
            return cls(
                rank=int(raw["r"]),
                alpha=float(raw["lora_alpha"]),
                is_rank_stabilised=bool(raw.get("use_rslora", False)),
                rank_by_pattern=dict(raw.get("rank_pattern") or {}),
                alpha_by_pattern=dict(raw.get("alpha_pattern") or {}),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnsupportedModel(f"cannot read {path}: {error!r}") from error

    def rank_of(self, module: str) -> int:
        """The rank of a module's update, by its name."""
        return int(_matched(self.rank_by_pattern, module, self.rank))

    def scaling_of(self, module: str) -> float:
        """What multiplies B A of a module: alpha / r, or alpha / sqrt(r) when rank-stabilised."""
        rank = self.rank_of(module)
        alpha = float(_matched(self.alpha_by_pattern, module, self.alpha))
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)


def _matched(patterns: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first pattern that is the whole name, or its end after a dot."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
