"""Names, shapes and sizes of a model's tensors, checked before any is read."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_engine.errors import UnsupportedModel
from llm_engine.loader import load_weights
from llm_engine.model_config import ModelConfig
from llm_engine.models.parameters import Parameters
from llm_engine.weights.footprint import tensor_bytes
from llm_engine.weights.safetensors import SafetensorsCheckpoint


def test_shapes_are_those_of_transformers(make_tiny: Callable[..., Any]) -> None:
    moe = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
    for oracle in (
        make_tiny(mlp_bias=True, attention_bias=True),
        make_tiny("Qwen3", tie_word_embeddings=True, rope_parameters=None),
        make_tiny("Qwen3Moe", mlp_only_layers=[1], rope_parameters=None, **moe),
    ):
        parameters = Parameters.of(
            ModelConfig.from_mapping(
                oracle.config.to_dict() | {"architectures": [type(oracle).__name__]}
            )
        )
        found = {name: tuple(p.shape) for name, p in oracle.named_parameters()}
        is_expert = re.compile(r"mlp\.experts\.")
        ours = {name: shape for name, shape in parameters.weights.items() if name in found}
        assert ours == {name: found[name] for name in ours}
        left = {name for name in found if name not in ours and not is_expert.search(name)}
        assert left <= set(parameters.biases)
        total = sum(torch.Size(shape).numel() for shape in parameters.weights.values())
        assert total + sum(found[name][0] for name in left) == oracle.num_parameters()


@pytest.mark.parametrize(
    ("name", "shape"),
    [("model.layers.2.self_attn.k_proj.weight", (31, 48)), ("model.norm.weight", (47,))],
)
def test_a_wrong_shape_is_named(
    make_tiny: Callable[..., Any], tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    oracle = make_tiny()
    oracle.save_pretrained(tmp_path)
    state = {key: value.contiguous() for key, value in oracle.state_dict().items()}
    expected = tuple(state[name].shape)
    state[name] = torch.zeros(shape)
    save_file(state, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    with pytest.raises(UnsupportedModel) as refusal:
        load_weights(checkpoint, torch.float32)
    assert all(str(part) in str(refusal.value) for part in (name, shape, expected))
    assert name in checkpoint.untaken()


def test_missing_tensors_are_counted_and_named(
    make_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    make_tiny().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(UnsupportedModel, match=r"lack 9 tensors .*model\.layers\.3\."):
        load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_tied", [False, True])
def test_planned_bytes_are_those_measured(
    make_tiny: Callable[..., Any], tmp_path: Path, dtype: torch.dtype, is_tied: bool
) -> None:
    make_tiny(tie_word_embeddings=is_tied).save_pretrained(tmp_path)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    parameters = Parameters.of(ModelConfig.from_mapping(checkpoint.config))
    facts = parameters.facts(checkpoint, dtype)
    assert not facts.is_quantised
    assert facts.packed_bytes == facts.unpacked_bytes
    measured = tensor_bytes(load_weights(checkpoint, dtype))
    assert abs(facts.unpacked_bytes - measured) <= 64  # the rotary frequencies


def test_shared_memory_is_counted_once() -> None:
    base = torch.zeros(10, 4)
    assert tensor_bytes({"a": base, "b": base[2:], "c": [base.T, torch.zeros(3)]}) == 160 + 12


def test_biases_that_the_config_asks_for_must_be_there(
    make_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    make_tiny("Qwen2", rope_parameters=None).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["model.layers.1.self_attn.k_proj.bias"]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"lack 1 .*layers\.1\.self_attn\.k_proj\.bias"):
        load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)
