"""GGUF files written from models of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

LAYER = {
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
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Blocks of random integers whose scales give values around 1; shape (rows, bytes)."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    halves = rng.uniform(0.2, 1.0, (*blocks.shape[:2], 2)).astype(np.float32)
    halves *= {"Q4_0": 0.1, "Q4_1": 0.1, "Q8_0": 0.01, "Q4_K": 2e-3, "Q6_K": 4e-4}[kind]
    as_bytes = halves.astype(np.float16).view(np.uint8)
    if kind == "Q6_K":
        blocks[..., -2:] = as_bytes[..., :2]
    else:
        width = 4 if kind in ("Q4_1", "Q4_K") else 2
        blocks[..., :width] = as_bytes[..., :width]
    return blocks.reshape(rows, -1)


@pytest.fixture(scope="session")
def make_blocks() -> Callable[..., np.ndarray]:
    """See `random_blocks`."""
    return random_blocks


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., None]:
    """Writes a model of transformers in one quantisation, which its own weights then take."""

    def write(oracle: Any, path: Path, kind: str, arch: str = "llama", **extra: Any) -> None:
        writer = gguf.GGUFWriter(str(path), arch)
        _add_metadata(writer, oracle.config)
        state: dict[str, torch.Tensor] = oracle.state_dict()
        for ours, theirs in _names(oracle.config):
            for suffix in ("weight", "bias"):
                if f"{theirs}.{suffix}" in state:
                    parameter = state[f"{theirs}.{suffix}"]
                    is_router = ours.endswith("ffn_gate_inp")
                    stored = "F32" if is_router else kind
                    _add(writer, f"{ours}.{suffix}", parameter, stored, oracle.config.head_dim)
        if arch == "qwen3moe":
            _add_experts(writer, oracle, kind)
        for name, values in extra.items():
            writer.add_tensor(name.replace("__", "."), values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return write


def _add_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        original = rope.get("original_max_position_embeddings", 0)
        writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(256)
    if hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _names(config: Any) -> list[tuple[str, str]]:
    layers = range(config.num_hidden_layers)
    pairs = [(f"blk.{i}.{a}", f"model.layers.{i}.{b}") for i in layers for a, b in LAYER.items()]
    tops = [
        pair for pair in TOP.items() if not (config.tie_word_embeddings and pair[0] == "output")
    ]
    return [*tops, *pairs]


def _add(
    writer: gguf.GGUFWriter, name: str, parameter: torch.Tensor, kind: str, head_dim: int
) -> None:
    """One tensor; of q and k of a Llama the rows are in llama.cpp's order."""
    stored = GGMLQuantizationType[kind if parameter.dim() == 2 else "F32"]
    raw = _quantised(parameter, stored)
    if writer.arch == "llama" and (".attn_q." in name or ".attn_k." in name):
        raw = _interleaved(raw, parameter, head_dim)
    writer.add_tensor(name, raw, raw_dtype=stored)


def _quantised(parameter: torch.Tensor, kind: GGMLQuantizationType) -> np.ndarray:
    """The rows as the file holds them; the parameter takes what they stand for."""
    if kind.name in ("Q4_K", "Q6_K"):
        raw = random_blocks(kind.name, *parameter.shape, seed=parameter.numel())
    else:
        raw = gguf.quantize(parameter.numpy(), kind)
    values = gguf.dequantize(raw, kind).reshape(parameter.shape)
    if kind.name in ("Q4_K", "Q6_K"):  # such blocks hold no norm of their own: keep it moderate
        assert 0.01 < np.abs(values).mean() < 2
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values))
    return raw


def _interleaved(raw: np.ndarray, parameter: torch.Tensor, head_dim: int) -> np.ndarray:
    """Rows (half, pair) of each head as (pair, half)."""
    rows = raw.reshape(parameter.shape[0], -1)
    split = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(raw.shape)


def _add_experts(writer: gguf.GGUFWriter, oracle: Any, kind: str) -> None:
    stored = GGMLQuantizationType[kind]
    for index, layer in enumerate(oracle.model.layers):
        experts = layer.mlp.experts
        gate, up = experts.gate_up_proj.data.chunk(2, dim=1)
        for name, stack in (("gate", gate), ("up", up), ("down", experts.down_proj.data)):
            raw = np.stack([_quantised(matrix, stored) for matrix in stack])
            writer.add_tensor(f"blk.{index}.ffn_{name}_exps.weight", raw, raw_dtype=stored)
