"""Safetensors and GGUF files read back as what was written, each tensor once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.errors import UnsupportedModel
from llm_engine.kv_cache import PagePool
from llm_engine.loader import load_weights
from llm_engine.models.base import CausalModel
from llm_engine.runner import Runner
from llm_engine.scheduler import Chunk
from llm_engine.sequence import Sequence
from llm_engine.weights.gguf import GgufCheckpoint
from llm_engine.weights.safetensors import INDEX_NAME, SafetensorsCheckpoint

IDS = list(range(30, 70))
# In the order of GGUF's names: what each is called by transformers.
GGUF_LAYER = {
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


def _logits(model: CausalModel) -> torch.Tensor:
    pool = PagePool(num_pages=20, page_size=4)
    pool.grow(0, len(IDS))
    seq = Sequence(seq_id=0, token_ids=IDS, num_prompt_tokens=len(IDS), max_total_tokens=80)
    ops = decide(EngineConfig(model="tiny"), model.config, torch.float32).ops
    logits = Runner(model, pool, torch.float32, ops).run([Chunk(seq, 0, len(IDS), is_last=True)])
    assert logits is not None
    return logits[0]


def _oracle_logits(oracle: Any) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([IDS])).logits[0, -1]


def _interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's row order for q and k, as its converter makes it."""
    split = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def _write_gguf(
    oracle: Any, path: Path, kind: gguf.GGMLQuantizationType, **extra: np.ndarray
) -> None:
    config = oracle.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(256)
    weights = {name: value.numpy() for name, value in oracle.state_dict().items()}
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for layer in range(config.num_hidden_layers):
        for ours, theirs in GGUF_LAYER.items():
            names[f"blk.{layer}.{ours}"] = f"model.layers.{layer}.{theirs}"
    for ours, theirs in names.items():
        rows = weights[f"{theirs}.weight"]
        if ours.endswith("attn_q"):
            rows = _interleave(rows, config.num_attention_heads)
        if ours.endswith("attn_k"):
            rows = _interleave(rows, config.num_key_value_heads)
        stored = kind if rows.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{ours}.weight", gguf.quantize(rows, stored), raw_dtype=stored)
    for name, values in extra.items():
        writer.add_tensor(name.replace("__", "."), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def plain(make_tiny: Callable[..., Any]) -> Any:
    """Sizes that every quantisation's block of 32 divides."""
    return make_tiny(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def test_shards_are_read_once_and_to_the_end(tiny_folder: Path, tiny_oracle: Any) -> None:
    assert len(list(tiny_folder.glob("*.safetensors"))) > 2
    checkpoint = SafetensorsCheckpoint(tiny_folder)
    assert not checkpoint._shards
    model = load_weights(checkpoint, torch.float32)
    assert checkpoint.untaken() == []
    assert (_logits(model) - _oracle_logits(tiny_oracle)).abs().max() <= 1e-4


def test_a_tensor_is_never_read_twice(tiny_folder: Path) -> None:
    checkpoint = SafetensorsCheckpoint(tiny_folder)
    checkpoint.take("model.norm.weight")
    assert len(checkpoint._shards) == 1
    with pytest.raises(AssertionError, match="read twice"):
        checkpoint.take("model.norm.weight")


def test_eos_ids_come_from_both_configs(tiny_folder: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 7]}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert SafetensorsCheckpoint(tmp_path).eos_token_ids == {5, 6, 7}


@pytest.mark.parametrize("change", ["missing tensor", "unknown tensor", "broken shard"])
def test_incomplete_files_are_refused(
    make_tiny: Callable[..., Any], tmp_path: Path, change: str
) -> None:
    oracle = make_tiny()
    oracle.save_pretrained(tmp_path)
    state = {name: value.contiguous() for name, value in oracle.state_dict().items()}
    if change == "missing tensor":
        del state["model.layers.1.mlp.up_proj.weight"]
    if change == "unknown tensor":
        state["model.layers.1.self_attn.sinks"] = torch.zeros(6)
    save_file(state, tmp_path / "model.safetensors")
    if change == "broken shard":
        (tmp_path / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(UnsupportedModel):
        load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)


def test_an_index_that_names_a_missing_shard_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", INDEX_NAME):
        (tmp_path / name).write_bytes((tiny_folder / name).read_bytes())
    with pytest.raises(UnsupportedModel, match="cannot read"):
        load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_0", "Q4_1"])
def test_gguf_equals_transformers_on_the_dequantised_weights(
    plain: Any, tmp_path: Path, kind: str
) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    _write_gguf(plain, tmp_path / "m.gguf", quantisation)
    checkpoint = GgufCheckpoint(tmp_path / "m.gguf")
    assert checkpoint.eos_token_ids == {256}
    model = load_weights(checkpoint, torch.float32)
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.dim() == 2:
                stored = gguf.quantize(parameter.numpy(), quantisation)
                parameter.copy_(torch.from_numpy(gguf.dequantize(stored, quantisation)))
    assert (_logits(model) - _oracle_logits(plain)).abs().max() <= 1e-4


def test_gguf_rope_divisors_are_llama3_scaling(
    make_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    oracle = make_tiny(hidden_size=64, intermediate_size=96, num_attention_heads=4)
    theirs = oracle.model.rotary_emb.inv_freq
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    divisors = (plain / theirs).float().numpy()
    _write_gguf(
        oracle, tmp_path / "m.gguf", gguf.GGMLQuantizationType.F32, rope_freqs__weight=divisors
    )
    model = load_weights(GgufCheckpoint(tmp_path / "m.gguf"), torch.float32)
    assert (_logits(model) - _oracle_logits(oracle)).abs().max() <= 1e-4


def test_gguf_files_it_cannot_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really, just some bytes")
    with pytest.raises(UnsupportedModel, match="cannot read"):
        GgufCheckpoint(tmp_path / "broken.gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "other.gguf"), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="'mamba'"):
        GgufCheckpoint(tmp_path / "other.gguf")
