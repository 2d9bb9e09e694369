"""Checkpoints in FP8 blocks: values times the scale of their block, odd sizes included."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.ops.block_fp8_gemm.formats.reference import quantise_blocks
from llm_engine.device import EngineDevice
from llm_engine.errors import UnsupportedModel
from llm_engine.layers.form_choice import FormQuestion, choose_forms
from llm_engine.layers.kept_forms import KeptForms
from llm_engine.loader import load_weights
from llm_engine.model_config import ModelConfig
from llm_engine.models.parameters import Parameters
from llm_engine.weights.facts import StoredForm
from llm_engine.weights.footprint import tensor_bytes
from llm_engine.weights.fp8_blocks import Fp8Blocks
from llm_engine.weights.safetensors import SafetensorsCheckpoint

SETTINGS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
IDS = list(range(30, 70))
# No width is a multiple of 128, and each is more than one block.
SIZES = {"hidden_size": 150, "intermediate_size": 263}


def _quantise(folder: Path, oracle: Any, settings: dict[str, Any]) -> None:
    """Store every linear map in blocks; the oracle takes what the blocks stand for."""
    oracle.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    state = load_file(folder / "model.safetensors")
    for name in [n for n in state if n.endswith("_proj.weight")]:
        values, scales = quantise_blocks(state[name], 128)
        state |= {name: values, f"{name}_scale_inv": scales}
        rows, columns = values.shape
        wide = torch.empty(rows, columns, dtype=torch.float64)
        for i in range(rows):
            for j in range(0, columns, 128):
                block = values[i, j : j + 128].double()
                wide[i, j : j + 128] = block * scales[i // 128, j // 128].double()
        with torch.no_grad():
            oracle.get_parameter(name).copy_(wide)
    save_file(state, folder / "model.safetensors")


def test_logits_equal_those_of_the_dequantised_weights(
    make_tiny: Callable[..., Any], logits_of: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    oracle = make_tiny(**SIZES)
    before = oracle.model.layers[0].mlp.up_proj.weight.detach().clone()
    _quantise(tmp_path, oracle, SETTINGS)
    assert not torch.equal(before, oracle.model.layers[0].mlp.up_proj.weight)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert not any(name.endswith("scale_inv") for name in checkpoint.untaken())
    model = load_weights(checkpoint, torch.float32)
    with torch.inference_mode():
        expected = oracle(torch.tensor([IDS])).logits[0, -1]
    assert (logits_of(model, IDS, [40])[0] - expected).abs().max() <= 1e-4


def kept(config: ModelConfig, asked: str = "torch") -> KeptForms:
    """Forms of a CPU that is asked to keep the blocks."""
    return choose_forms(
        FormQuestion(
            model=config, dtype=torch.float32, num_rows=4, device=EngineDevice.of("cpu"),
            stored=StoredForm(fp8_block=128), asked={"block_fp8_gemm": asked},
        )
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [SIZES, {"hidden_size": 192, "head_dim": 64}], ids=str)
def test_kept_blocks_give_the_logits_of_the_dequantised_weights(
    make_tiny: Callable[..., Any],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    sizes: dict[str, int],
) -> None:
    """Where q, k and v fill whole blocks of rows they are one product, else three."""
    oracle = make_tiny(**sizes, attention_bias=True)
    _quantise(tmp_path, oracle, SETTINGS)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    config = ModelConfig.from_mapping(checkpoint.config)
    forms = kept(config)
    facts = Parameters.of(config).facts(checkpoint, torch.float32)
    model: Any = load_weights(checkpoint, torch.float32, forms)
    assert model.num_parameters == oracle.num_parameters()
    qkv = model._layers[0].attention.qkv.scaled
    expected_parts = [640] if "head_dim" in sizes else [96, 32, 32]
    assert [len(part.values) for part in qkv.parts] == expected_parts
    assert facts.stored == StoredForm(fp8_block=128)
    frequencies = 4 * config.head_dim // 2  # are no tensors of the files
    assert tensor_bytes(model) - forms.weight_bytes(facts) == frequencies
    assert forms.weight_bytes(facts) < 0.4 * facts.unpacked_bytes
    with torch.inference_mode():
        expected = oracle(torch.tensor([IDS])).logits[0, -1]
    assert (logits_of(model, IDS, [40])[0] - expected).abs().max() <= 1e-4


def test_a_map_of_which_a_part_is_in_numbers_is_numbers(
    make_tiny: Callable[..., Any], logits_of: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    oracle = make_tiny(**SIZES)
    _quantise(tmp_path, oracle, SETTINGS)
    state = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    del state[f"{name}_scale_inv"]
    state[name] = oracle.get_parameter(name).detach().contiguous()
    save_file(state, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    forms = kept(ModelConfig.from_mapping(checkpoint.config))
    model: Any = load_weights(checkpoint, torch.float32, forms)
    assert [layer.attention.qkv.scaled is None for layer in model._layers] == [False, True, False]
    with torch.inference_mode():
        expected = oracle(torch.tensor([IDS])).logits[0, -1]
    assert (logits_of(model, IDS, [40])[0] - expected).abs().max() <= 1e-4


def test_bfloat16_is_one_rounding_of_the_product() -> None:
    weight = torch.randn(130, 257, generator=torch.Generator().manual_seed(1))
    values, scales = quantise_blocks(weight, 128)
    ours = Fp8Blocks(128).scaled("w", values, scales).dequantised().bfloat16()
    spread = scales.double().repeat_interleave(128, 0)[:130].repeat_interleave(128, 1)[:, :257]
    assert torch.equal(ours, (values.double() * spread).float().bfloat16())


@pytest.mark.parametrize("change", ["no scales", "scales of another shape"])
def test_incomplete_blocks_are_refused(
    make_tiny: Callable[..., Any], tmp_path: Path, change: str
) -> None:
    _quantise(tmp_path, make_tiny(**SIZES), SETTINGS)
    state = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    scales = state.pop(f"{name}_scale_inv")
    if change != "no scales":
        state[f"{name}_scale_inv"] = scales[:, :1].contiguous()
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"layers\.1\.mlp\.up_proj\.weight_scale_inv"):
        load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"quant_method": "awq"}, "'awq'"),
        ({"quant_method": "compressed-tensors"}, "'compressed-tensors'"),
        ({"quant_method": "fp8"}, "blocks of None"),
        ({**SETTINGS, "weight_block_size": [64, 128]}, r"blocks of \[64, 128\]"),
        ({**SETTINGS, "fmt": "e5m2"}, "e5m2"),
    ],
)
def test_other_quantisations_are_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{name}.*; supported: none, fp8"):
        Fp8Blocks.from_config({"quantization_config": settings})
