"""Reading GGUF files: names and metadata mapped to the Hugging Face layout, tensors dequantised.

Source: the GGUF specification in ggml; llama.cpp's converter for the row order of q and k.
"""

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.quants import dequantize

from llm_engine.errors import UnsupportedModel
from llm_engine.weights.checkpoint import TakenNames
from llm_engine.weights.gguf_file import GgufFile, GgufTensor

_ARCHITECTURES = {"llama": "LlamaForCausalLM"}
_MERGED_ROWS = 16
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "rope_freqs": "rope_freqs",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_PATTERN = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufCheckpoint:
    """One `.gguf` file, memory-mapped; every quantisation the `gguf` package can undo.

    Raises: UnsupportedModel if the file is broken, split, or of an unknown architecture.
    """

    def __init__(self, path: Path) -> None:
        """Read the metadata; no tensor is read yet."""
        try:
            file = GgufFile.open(path)
        except (OSError, ValueError, struct.error) as error:
            raise UnsupportedModel(f"cannot read {path}: {error}") from error
        self._path = path
        self._fields = file.fields
        self._tensors = {_hf_name(name): tensor for name, tensor in file.tensors.items()}
        self._names = TakenNames(set(self._tensors))
        self.config: Mapping[str, Any] = self._build_config()
        self.eos_token_ids = frozenset(
            int(self._fields[f"tokenizer.ggml.{key}"])
            for key in _EOS_KEYS
            if f"tokenizer.ggml.{key}" in self._fields
        )

    def has(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        return self._names.has(name)

    def take(self, name: str) -> torch.Tensor:
        """Read one tensor, dequantised to float32, rows in the Hugging Face order."""
        if not self._names.has(name):
            raise UnsupportedModel(f"{self._path} has no tensor {name}")
        self._names.mark(name)
        tensor = self._tensors.pop(name)
        try:
            rows = _dequantised(tensor)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self._path} stores {name} as {tensor.kind.name}, which the gguf "
                "package cannot dequantise: use a file of another quantisation"
            ) from error
        if ".q_proj." in name:
            return _undo_rotary_order(rows, self.config["num_attention_heads"])
        if ".k_proj." in name:
            return _undo_rotary_order(rows, self.config["num_key_value_heads"])
        return rows

    def untaken(self) -> list[str]:
        """Names nobody has taken."""
        return self._names.untaken()

    def close(self) -> None:
        """Drop the memory map."""
        self._tensors.clear()

    def _build_config(self) -> dict[str, Any]:
        architecture = str(self._fields.get("general.architecture"))
        if architecture not in _ARCHITECTURES:
            raise UnsupportedModel(
                f"{self._path} is of architecture {architecture!r}; supported in GGUF: "
                f"{', '.join(_ARCHITECTURES)}"
            )
        if int(self._fields.get("split.count", 1)) > 1:
            raise UnsupportedModel(f"{self._path} is one part of a split file: merge the parts")
        num_heads = int(self._value("attention.head_count"))
        head_dim = int(self._value("embedding_length")) // num_heads
        head_dim = int(self._value("attention.key_length", head_dim))
        if int(self._value("rope.dimension_count", head_dim)) != head_dim:
            raise UnsupportedModel(f"{self._path} rotates a part of each head only")
        return {
            "architectures": [_ARCHITECTURES[architecture]],
            "vocab_size": int(self._value("vocab_size", self._fields.get("tokenizer.ggml.tokens"))),
            "hidden_size": int(self._value("embedding_length")),
            "intermediate_size": int(self._value("feed_forward_length")),
            "num_hidden_layers": int(self._value("block_count")),
            "num_attention_heads": num_heads,
            "num_key_value_heads": int(self._value("attention.head_count_kv", num_heads)),
            "head_dim": head_dim,
            "rms_norm_eps": float(self._value("attention.layer_norm_rms_epsilon")),
            "max_position_embeddings": int(self._value("context_length")),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "rope_parameters": self._rope_parameters(),
        }

    def _rope_parameters(self) -> dict[str, Any]:
        kind = str(self._value("rope.scaling.type", "none"))
        parameters: dict[str, Any] = {
            "rope_type": "default" if kind == "none" else kind,
            "rope_theta": float(self._value("rope.freq_base", 10000.0)),
        }
        if kind != "none":
            parameters["factor"] = float(self._value("rope.scaling.factor"))
        return parameters

    def _value(self, key: str, default: float | str | None = None) -> Any:  # noqa: ANN401
        name = f"{self._fields['general.architecture']}.{key}"
        if name in self._fields:
            return self._fields[name]
        if default is None:
            raise UnsupportedModel(f"{self._path} has no metadata field {name}")
        return default


def _dequantised(tensor: GgufTensor) -> torch.Tensor:
    """Values in float32. The gguf package works on 16 rows at a time: longer rows, fewer calls."""
    num_rows = tensor.data.shape[0]
    merged = tensor.data.reshape(num_rows // math.gcd(num_rows, _MERGED_ROWS), -1)
    values = dequantize(merged, tensor.kind).reshape(tensor.shape)
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))


def _hf_name(name: str) -> str:
    match = _LAYER_PATTERN.fullmatch(name)
    if match is not None and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_TOP_NAMES[stem]}.{kind}" if stem in _TOP_NAMES else name


def _undo_rotary_order(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """GGUF interleaves the two halves of each head's rows: (pair, half) back to (half, pair)."""
    rest = rows.shape[1:]
    pairs = rows.shape[0] // num_heads // 2
    split = rows.reshape(num_heads, pairs, 2, *rest)
    return split.transpose(1, 2).reshape(rows.shape).contiguous()
