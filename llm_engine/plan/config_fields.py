"""Reading a published `config.json`: text fields, whether nested or not, and the weight formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_engine.errors import UnsupportedModel


class ConfigFields:
    """The text fields of a config, with the model's type and weight formats.

    Raises: UnsupportedModel from every accessor, naming the field that is missing.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        """Keep the config; text fields win over the top level where they are nested."""
        self._raw = raw
        self._text = {**raw, **(raw.get("text_config") or {})}

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._text.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedModel(f"the model's config has no number {name!r} (it is {value!r})")
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, empty where there is none."""
        return tuple(int(value) for value in self._text.get(name) or ())

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, empty where there is none."""
        return tuple(str(value) for value in self._text.get(name) or ())

    def text(self, name: str, default: str) -> str:
        """A string."""
        return str(self._text.get(name, default))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        return bool(self._text.get(name, default))

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._text.get(name) is not None

    @property
    def vision(self) -> Mapping[str, Any]:
        """The fields of the vision tower; empty where there is none."""
        return dict(self._raw.get("vision_config") or {})

    @property
    def block(self) -> str | None:
        """The scale block of fp8 weights, "128x128"; None for plain weights.

        Raises: UnsupportedModel for a format that no op takes.
        """
        quantisation = self._raw.get("quantization_config") or {}
        if not quantisation:
            return None
        method, size = quantisation.get("quant_method"), quantisation.get("weight_block_size")
        if method == "mxfp4":
            return None  # of experts alone: see `expert_weights`
        if method != "fp8" or not size:
            raise UnsupportedModel(
                f"weights quantised with {method!r} and blocks {size!r} are not known here; known: "
                "plain weights, fp8 with weight_block_size, and mxfp4 of experts"
            )
        return "x".join(map(str, size))

    @property
    def expert_weights(self) -> str:
        """How experts are stored: "bf16", "fp8" or "mxfp4"."""
        quantisation = self._raw.get("quantization_config") or {}
        expert = quantisation.get("expert_dtype") or self._raw.get("expert_dtype")
        if expert == "fp4" or quantisation.get("quant_method") == "mxfp4":
            return "mxfp4"
        return "fp8" if quantisation else "bf16"
