"""The shape of a decoder-only model, read from a `config.json`-like mapping."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from llm_engine.errors import UnsupportedModel
from llm_engine.windows import Windows

_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
GPT_OSS = "GptOssForCausalLM"
_FAMILIES_WITH_MOE = ("Qwen3MoeForCausalLM", GPT_OSS)
_FAMILIES_WITH_BIAS = ("Qwen2ForCausalLM", GPT_OSS)
_FAMILIES_WITH_HEAD_NORMS = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: base, and how its frequencies are stretched for long contexts.

    `attention_factor` multiplies cosines and sines. "dynamic" stretches only beyond the model's
    own context, which the engine never exceeds: it is the same as "default" here.
    """

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_truncated: bool = True
    attention_factor: float = 1.0

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
        if float(scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))) != 1:
            raise UnsupportedModel("the model rotates a part of each head only")
        default_original = raw.get("max_position_embeddings", 8192)
        original = int(scaling.get("original_max_position_embeddings") or default_original)
        stated = int(raw.get("max_position_embeddings", original))
        factor = float(scaling.get("factor") or stated / original)
        return cls(
            theta=float(scaling.get("rope_theta", raw.get("rope_theta", 10000.0))),
            rope_type=rope_type,
            factor=factor,
            low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
            high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
            original_max_position=original,
            beta_fast=float(scaling.get("beta_fast") or 32.0),
            beta_slow=float(scaling.get("beta_slow") or 1.0),
            is_truncated=bool(scaling.get("truncate", True)),
            attention_factor=_yarn_attention(scaling, factor) if rope_type == "yarn" else 1.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """The activation's bounds and gain; see `kernels.ops.swiglu`."""

    clamp: float | None = None
    gain: float = 1.0
    shift: float = 0.0

    @property
    def has_gain(self) -> bool:
        """Whether it is more than a SwiGLU with bounds."""
        return (self.gain, self.shift) != (1.0, 0.0)

    @property
    def options(self) -> dict[str, float]:
        """What the op is called with; empty for a plain SwiGLU."""
        options = {} if self.clamp is None else {"clamp": self.clamp}
        return options | ({"gain": self.gain, "shift": self.shift} if self.has_gain else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """A mixture of experts: which layers have one, and how tokens choose.

    `has_biases` says that the router and every map of an expert add one. `layer_experts` are the
    numbers of each layer, where a rank holds more of some; empty where it holds `num_experts`.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    is_renormalised: bool
    sparse_step: int
    dense_layers: frozenset[int]
    has_biases: bool = False
    layer_experts: tuple[int, ...] = ()

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], architecture: str = "") -> Self:
        """Read the field names of Qwen3-MoE, or of gpt-oss.

        Raises: UnsupportedModel for more experts a token than there are; KeyError.
        """
        num_experts = int(raw.get("num_experts") or raw["num_local_experts"])
        per_token = int(raw["num_experts_per_tok"])
        if per_token > num_experts:
            raise UnsupportedModel(
                f"the config asks for {per_token} experts a token, but the model has {num_experts}"
            )
        if architecture == GPT_OSS:
            return cls(
                num_experts=num_experts,
                num_experts_per_token=per_token,
                intermediate_size=int(raw["intermediate_size"]),
                is_renormalised=True,  # a softmax over the chosen is one over all, renormalised
                sparse_step=1,
                dense_layers=frozenset(),
                has_biases=True,
            )
        return cls(
            num_experts=num_experts,
            num_experts_per_token=per_token,
            intermediate_size=int(raw["moe_intermediate_size"]),
            is_renormalised=bool(raw.get("norm_topk_prob", False)),
            sparse_step=int(raw.get("decoder_sparse_step", 1)),
            dense_layers=frozenset(int(layer) for layer in raw.get("mlp_only_layers") or ()),
        )

    def num_held(self, layer: int) -> int:
        """How many experts of a layer there are here."""
        return self.layer_experts[layer] if self.layer_experts else self.num_experts

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer (counted from 0) has experts instead of one MLP."""
        return layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes of a model. Units: `max_position` in tokens: its context, stretched by yarn.

    `has_sinks` says that every head has a logit that takes a share of the softmax and adds nothing.
    """

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
    has_head_norms: bool = False
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_sinks: bool = False
    windows: Windows | None = None
    gate: GateConfig = GateConfig()
    moe: MoeConfig | None = None

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> Self:
        """Read the Hugging Face field names.

        Raises: UnsupportedModel if a size is missing or no number, or the activation is not SiLU.
        """
        architecture = str((raw.get("architectures") or ["(none named)"])[0])
        activation = raw.get("hidden_act", "silu")
        if activation != "silu":
            raise UnsupportedModel(f"activation {activation!r} is not supported; supported: silu")
        try:
            num_heads = int(raw["num_attention_heads"])
            hidden_size = int(raw["hidden_size"])
            rope = RopeConfig.from_mapping(raw)
            has_moe = architecture in _FAMILIES_WITH_MOE
            max_position = _max_position(raw, rope)
            has_bias = bool(raw.get("attention_bias", architecture in _FAMILIES_WITH_BIAS))
            windows = Windows.from_mapping(raw, architecture)
            return cls(
                architecture=architecture,
                vocab_size=int(raw["vocab_size"]),
                hidden_size=hidden_size,
                intermediate_size=int(raw["intermediate_size"]),
                num_layers=int(raw["num_hidden_layers"]),
                num_heads=num_heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
                head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
                rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
                max_position=max_position,
                is_tied=bool(raw.get("tie_word_embeddings", False)),
                rope=rope,
                has_head_norms=architecture in _FAMILIES_WITH_HEAD_NORMS,
                has_qkv_bias=has_bias,
                has_out_bias=has_bias and architecture == GPT_OSS,
                has_sinks=architecture == GPT_OSS,
                windows=windows if windows and windows.tokens < max_position else None,
                gate=_gate(raw) if architecture == GPT_OSS else GateConfig(),
                moe=MoeConfig.from_mapping(raw, architecture) if has_moe else None,
            )
        except KeyError as error:
            raise UnsupportedModel(f"the model's config has no field {error}") from error
        except (TypeError, ValueError) as error:
            raise UnsupportedModel(f"the model's config cannot be read: {error}") from error

    @property
    def num_experts(self) -> int:
        """Experts of a layer that has them, 0 without."""
        return 0 if self.moe is None else self.moe.num_experts

    def within_window(self) -> Self:
        """The same model with full attention in all layers: equal as far as a window reaches."""
        if self.windows is None:
            return self
        return replace(self, windows=None, max_position=self.windows.tokens)


def _yarn_attention(scaling: Mapping[str, Any], factor: float) -> float:
    """What yarn multiplies cosines and sines by. Source: Peng et al. 2023, arXiv:2309.00071."""
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if factor <= 1:
        return 1.0
    mscale, over = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if not (mscale and over):
        mscale, over = 1.0, 0.0
    growth = 0.1 * math.log(factor)
    return (growth * float(mscale) + 1.0) / (growth * float(over) + 1.0)


def _max_position(raw: Mapping[str, Any], rope: RopeConfig) -> int:
    stated = int(raw.get("max_position_embeddings", 2048))
    if rope.rope_type == "yarn":
        stated = max(stated, int(rope.original_max_position * rope.factor))
    return stated


def _gate(raw: Mapping[str, Any]) -> GateConfig:
    """What gpt-oss's experts apply: (up + 1) · gate · sigmoid(alpha · gate), both clamped."""
    return GateConfig(
        clamp=float(raw.get("swiglu_limit", 7.0)),
        gain=float(raw.get("swiglu_alpha", 1.702)),
        shift=1.0,
    )
