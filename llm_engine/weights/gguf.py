"""Reading GGUF files: names mapped to the Hugging Face layout, tensors packed or dequantised.

Source: the GGUF specification in ggml; llama.cpp's converter for the row order of q and k.
"""

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from llm_engine.errors import UnsupportedModel
from llm_engine.weights.checkpoint import (
    BlockWeights,
    ScaledWeights,
    StoredTensor,
    TakenNames,
)
from llm_engine.weights.gguf_blocks import can_split, split_blocks
from llm_engine.weights.gguf_config import GgufMetadata
from llm_engine.weights.gguf_file import GgufFile, GgufTensor

_INTERLEAVED = ("llama",)
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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERT_NAMES = {
    "ffn_gate_exps": "gate_proj",
    "ffn_up_exps": "up_proj",
    "ffn_down_exps": "down_proj",
}
_LAYER_PATTERN = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufCheckpoint:
    """One `.gguf` file, memory-mapped; every quantisation the `gguf` package can undo.

    Experts, which the file stacks, have a name each.
    Raises: UnsupportedModel if the file is broken, split, or of an unknown architecture.
    """

    keeps_rows = False

    def __init__(self, path: Path) -> None:
        """Read the metadata; no tensor is read yet."""
        try:
            file = GgufFile.open(path)
        except (OSError, ValueError, struct.error) as error:
            raise UnsupportedModel(f"cannot read {path}: {error}") from error
        self._path = path
        metadata = GgufMetadata(path, file.fields)
        self._is_interleaved = metadata.architecture in _INTERLEAVED
        self._tensors = {
            hf_name: part
            for name, tensor in file.tensors.items()
            for hf_name, part in _hf_tensors(name, tensor)
        }
        self._names = TakenNames(set(self._tensors))
        self.config: Mapping[str, Any] = metadata.config(self._tensors)
        self.eos_token_ids = frozenset(
            int(file.fields[f"tokenizer.ggml.{key}"])
            for key in _EOS_KEYS
            if f"tokenizer.ggml.{key}" in file.fields
        )

    def has(self, name: str) -> bool:
        """Whether a tensor of that name exists."""
        return self._names.has(name)

    def take(self, name: str) -> torch.Tensor:
        """Read one tensor, rows in the Hugging Face order.

        A 16-bit tensor keeps its dtype, a quantised one becomes float32.
        """
        tensor = self._taken(name)
        try:
            return _values(tensor)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self._path} stores {name} as {tensor.kind.name}, which the gguf "
                "package cannot dequantise: use a file of another quantisation"
            ) from error

    def take_part(self, name: str, dim: int, part: range) -> torch.Tensor:
        """As `take`, of which the rest is dropped again."""
        return self.take(name).narrow(dim, part.start, len(part)).clone()

    def take_packed(self, name: str) -> BlockWeights | None:
        """Read one tensor as integers with scales, rows in the Hugging Face order."""
        if not can_split(self._known(name).kind):
            return None
        tensor = self._taken(name)
        return split_blocks(tensor.data, tensor.kind)

    def take_scaled(self, name: str) -> ScaledWeights | None:
        """None: integers with scales are no small floats."""
        self._known(name)
        return None

    def stored(self, name: str) -> StoredTensor:
        """What the header says of a tensor."""
        tensor = self._known(name)
        return StoredTensor(tensor.shape, tensor.kind.name, tensor.data.nbytes)

    def untaken(self) -> list[str]:
        """Names nobody has taken."""
        return self._names.untaken()

    def close(self) -> None:
        """Drop the memory map."""
        self._tensors.clear()

    def _known(self, name: str) -> GgufTensor:
        if not self._names.has(name):
            raise UnsupportedModel(f"{self._path} has no tensor {name}")
        return self._tensors[name]

    def _taken(self, name: str) -> GgufTensor:
        """A tensor's bytes, marked as read. Whole rows are moved: blocks never span two."""
        tensor = self._known(name)
        self._names.mark(name)
        if self._is_interleaved and ".q_proj." in name:
            return _undo_rotary_order(tensor, self.config["num_attention_heads"])
        if self._is_interleaved and ".k_proj." in name:
            return _undo_rotary_order(tensor, self.config["num_key_value_heads"])
        return tensor


def _values(tensor: GgufTensor) -> torch.Tensor:
    if can_split(tensor.kind):
        return split_blocks(tensor.data, tensor.kind).dequantised().view(tensor.shape)
    if tensor.kind in (GGMLQuantizationType.F16, GGMLQuantizationType.BF16):
        dtype = torch.float16 if tensor.kind is GGMLQuantizationType.F16 else torch.bfloat16
        return torch.from_numpy(tensor.data.copy()).view(dtype).view(tensor.shape)
    # The gguf package works on 16 rows at a time: longer rows, fewer calls.
    num_rows = tensor.data.shape[0]
    merged = tensor.data.reshape(num_rows // math.gcd(num_rows, _MERGED_ROWS), -1)
    values = dequantize(merged, tensor.kind).reshape(tensor.shape)
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))


def _hf_tensors(name: str, tensor: GgufTensor) -> Iterator[tuple[str, GgufTensor]]:
    """A tensor under its Hugging Face name; a stack of experts (E, N, K) as E matrices."""
    match = _LAYER_PATTERN.fullmatch(name)
    if match is not None and match[2] in _EXPERT_NAMES:
        rows = tensor.shape[1]
        for expert in range(tensor.shape[0]):
            data = tensor.data[expert * rows : (expert + 1) * rows]
            part = replace(tensor, shape=tensor.shape[1:], data=data)
            projection = f"{_EXPERT_NAMES[match[2]]}.{match[3]}"
            yield f"model.layers.{match[1]}.mlp.experts.{expert}.{projection}", part
    elif match is not None and match[2] in _LAYER_NAMES:
        yield f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}", tensor
    else:
        stem, _, kind = name.rpartition(".")
        yield f"{_TOP_NAMES[stem]}.{kind}" if stem in _TOP_NAMES else name, tensor


def _undo_rotary_order(tensor: GgufTensor, num_heads: int) -> GgufTensor:
    """GGUF interleaves the two halves of each head's rows: (pair, half) back to (half, pair)."""
    rows = tensor.data.reshape(tensor.shape[0], -1)
    split = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, -1)
    data = np.ascontiguousarray(split.swapaxes(1, 2)).reshape(tensor.data.shape)
    return replace(tensor, data=data)
