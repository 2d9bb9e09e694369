"""A GGUF file's metadata as a `config.json`-like mapping.

Source: the GGUF specification in ggml (keys by architecture).
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from llm_engine.errors import UnsupportedModel
from llm_engine.weights.gguf_file import StringArray

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}


class GgufMetadata:
    """Fields of a GGUF file, looked up under its architecture's name."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        """Check the architecture. Raises: UnsupportedModel if it is unknown, or the file split."""
        self._path = path
        self._fields = fields
        self.architecture = str(fields.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise UnsupportedModel(
                f"{path} is of architecture {self.architecture!r}; supported in GGUF: "
                f"{', '.join(ARCHITECTURES)}"
            )
        if int(fields.get("split.count", 1)) > 1:
            raise UnsupportedModel(f"{path} is one part of a split file: merge the parts")

    def config(self, tensor_names: Collection[str]) -> dict[str, Any]:
        """The configuration; `tensor_names` (Hugging Face's) say what the metadata leaves open.

        Raises: UnsupportedModel naming a field that is missing.
        """
        num_heads = int(self._value("attention.head_count"))
        head_dim = int(self._value("embedding_length")) // num_heads
        head_dim = int(self._value("attention.key_length", head_dim))
        if int(self._value("rope.dimension_count", head_dim)) != head_dim:
            raise UnsupportedModel(f"{self._path} rotates a part of each head only")
        config: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "vocab_size": int(self._value("vocab_size", self._num_tokens())),
            "hidden_size": int(self._value("embedding_length")),
            "intermediate_size": int(self._value("feed_forward_length")),
            "num_hidden_layers": int(self._value("block_count")),
            "num_attention_heads": num_heads,
            "num_key_value_heads": int(self._value("attention.head_count_kv", num_heads)),
            "head_dim": head_dim,
            "rms_norm_eps": float(self._value("attention.layer_norm_rms_epsilon")),
            "max_position_embeddings": int(self._value("context_length")),
            "tie_word_embeddings": "lm_head.weight" not in tensor_names,
            "rope_parameters": self._rope_parameters(),
            "sliding_window": int(self._value("attention.sliding_window", 0)),
        }
        return config | self._experts(tensor_names, config["num_hidden_layers"])

    def _experts(self, tensor_names: Collection[str], num_layers: int) -> dict[str, Any]:
        """Architectures with experts renormalise the weights of the chosen ones."""
        if self.architecture != "qwen3moe":
            return {}
        layers = range(num_layers)
        return {
            "num_experts": int(self._value("expert_count")),
            "num_experts_per_tok": int(self._value("expert_used_count")),
            "moe_intermediate_size": int(self._value("expert_feed_forward_length")),
            "norm_topk_prob": True,
            "mlp_only_layers": [
                i for i in layers if f"model.layers.{i}.mlp.gate_proj.weight" in tensor_names
            ],
        }

    def _rope_parameters(self) -> dict[str, Any]:
        kind = str(self._value("rope.scaling.type", "none"))
        parameters: dict[str, Any] = {
            "rope_type": "default" if kind == "none" else kind,
            "rope_theta": float(self._value("rope.freq_base", 10000.0)),
        }
        if kind != "none":
            parameters["factor"] = float(self._value("rope.scaling.factor"))
        original = int(self._value("rope.scaling.original_context_length", 0))
        if original:
            parameters["original_max_position_embeddings"] = original
        return parameters

    def _num_tokens(self) -> int | None:
        tokens = self._fields.get("tokenizer.ggml.tokens")
        return len(tokens) if isinstance(tokens, StringArray) else None

    def _value(self, key: str, default: float | str | None = None) -> Any:  # noqa: ANN401
        name = f"{self.architecture}.{key}"
        if name in self._fields:
            return self._fields[name]
        if default is None:
            raise UnsupportedModel(f"{self._path} has no metadata field {name}")
        return default
