"""Sliding windows: which layers attend to the last tokens alone, and what that needs of a cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

SLIDING = "sliding_attention"
_ALTERNATING = ("GptOssForCausalLM",)  # sliding first, where the config names no layers
# Of these, a window concerns the layers from `max_window_layers` on.
_WITH_FULL_LAYERS_FIRST = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """A token of the `layers` sees the last `tokens` positions, its own included."""

    tokens: int
    layers: frozenset[int]

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], architecture: str) -> Self | None:
        """Read a config; None where no layer has a window.

        Raises: KeyError, TypeError, ValueError for a config that cannot be read.
        """
        tokens = int(raw.get("sliding_window") or 0)
        if not tokens or not raw.get("use_sliding_window", True):
            return None
        named: Sequence[str] = raw.get("layer_types") or ()
        layers = frozenset(range(int(raw["num_hidden_layers"])))
        if named and len(named) < len(layers):
            raise ValueError(f"layer_types names {len(named)} layers, the model has {len(layers)}")
        if named:
            layers = frozenset(i for i in layers if named[i] == SLIDING)
        elif architecture in _ALTERNATING:
            layers = frozenset(i for i in layers if i % 2 == 0)
        elif architecture in _WITH_FULL_LAYERS_FIRST and raw.get("max_window_layers") is not None:
            first = int(raw["max_window_layers"])
            layers = frozenset(i for i in layers if i >= first)
        return cls(tokens=tokens, layers=layers) if layers else None

    def within(self, layers: range) -> Self | None:
        """The windows among these layers, counted from the first; None if there are none."""
        found = frozenset(layer - layers.start for layer in layers if layer in self.layers)
        return replace(self, layers=found) if found else None

    def of(self, layer: int) -> int | None:
        """The window of a layer (counted from 0), None for full attention."""
        return self.tokens if layer in self.layers else None
