"""The shape of a decoder-only model, read from a `config.json`-like mapping."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from llm_engine.errors import UnsupportedModel

_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: base, and how its frequencies are stretched for long contexts."""

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> Self:
        """Accept `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

        Raises: UnsupportedModel for a scaling the engine does not know.
        """
        scaling = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
        rope_type = str(scaling.get("rope_type", scaling.get("type", "default")))
        if rope_type not in _ROPE_TYPES:
            raise UnsupportedModel(
                f"rope scaling {rope_type!r} is not supported; supported: {', '.join(_ROPE_TYPES)}"
            )
        return cls(
            theta=float(scaling.get("rope_theta", raw.get("rope_theta", 10000.0))),
            rope_type=rope_type,
            factor=float(scaling.get("factor", 1.0)),
            low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
            high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
            original_max_position=int(scaling.get("original_max_position_embeddings", 8192)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of a model. Units: `max_position` in tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    max_position: int
    is_tied: bool
    rope: RopeConfig

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> Self:
        """Read the Hugging Face field names.

        Raises: UnsupportedModel if a size is missing or the activation is not SiLU.
        """
        architectures = raw.get("architectures") or ["(none named)"]
        activation = raw.get("hidden_act", "silu")
        if activation != "silu":
            raise UnsupportedModel(f"activation {activation!r} is not supported; supported: silu")
        try:
            num_heads = int(raw["num_attention_heads"])
            hidden_size = int(raw["hidden_size"])
            return cls(
                architecture=str(architectures[0]),
                vocab_size=int(raw["vocab_size"]),
                hidden_size=hidden_size,
                intermediate_size=int(raw["intermediate_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                num_heads=num_heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
                head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
                rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
                max_position=int(raw.get("max_position_embeddings", 2048)),
                is_tied=bool(raw.get("tie_word_embeddings", False)),
                rope=RopeConfig.from_mapping(raw),
            )
        except KeyError as error:
            raise UnsupportedModel(f"the model's config has no field {error}") from error
