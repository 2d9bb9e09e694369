"""gpt-oss against transformers: sinks, windows, yarn, clamped gates, experts in MXFP4."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.ops.block_fp8_gemm.formats.reference import pack_mxfp4
from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.config import EngineConfig
from llm_engine.errors import InvalidConfig, UnsupportedModel
from llm_engine.loader import load_model, load_weights, open_checkpoint
from llm_engine.model_config import ModelConfig
from llm_engine.models.parameters import Parameters
from llm_engine.plan.families import preset
from llm_engine.weights.checkpoint import Checkpoint
from llm_engine.weights.footprint import tensor_bytes
from llm_engine.weights.resolve import resolve

LENGTH = 97
GPT_OSS: dict[str, Any] = {
    "family": "GptOss",
    "intermediate_size": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}
# MXFP4 groups 32 inputs: of the experts' first map the channels, of the second the inner ones.
MXFP4 = {**GPT_OSS, "hidden_size": 64, "intermediate_size": 32}
VARIANTS: dict[str, dict[str, Any]] = {
    "alternating": {},
    "window of one token": {"sliding_window": 1},
    "window of no page's length": {"sliding_window": 21},
    "window beyond the context": {"sliding_window": 4096},
    "all layers slide": {"layer_types": ["sliding_attention"] * 3},
    "no layer slides": {"layer_types": ["full_attention"] * 3},
    "full first": {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    "one expert a token": {"num_experts_per_tok": 1},
    "all experts": {"num_experts_per_tok": 6},
    "clamped hard": {"swiglu_limit": 0.25},
}


def open_folder(folder: Path) -> Checkpoint:
    return open_checkpoint(resolve(str(folder)))


def quantise_experts(folder: Path) -> None:
    """Put the experts of a folder into MXFP4, as the released files have them."""
    state = load_file(folder / "model.safetensors")
    for name in [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]:
        if ".experts." in name:
            packed, scales = pack_mxfp4(state.pop(name).mT.contiguous())
            state[f"{name}_blocks"] = packed.unflatten(-1, (-1, 16)).contiguous()
            state[f"{name}_scales"] = scales
    save_file(state, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [[LENGTH], [1] * 24, [3, 41, 1, 52]], ids=len)
def test_logits_equal_transformers(
    make_tiny: Callable[..., Any],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    variant: str,
    sizes: list[int],
) -> None:
    oracle = make_tiny(**(GPT_OSS | VARIANTS[variant]))
    oracle.save_pretrained(tmp_path)
    model = load_weights(open_folder(tmp_path), torch.float32)
    assert model.num_parameters == oracle.num_parameters()
    ids = torch.randint(0, 240, (LENGTH,), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = oracle(ids.unsqueeze(0)).logits[0]
    ends = torch.tensor(sizes).cumsum(0) - 1
    assert (logits_of(model, ids.tolist(), sizes) - expected[ends]).abs().max() <= 1e-4


def test_mxfp4_experts_are_those_that_transformers_unpacks(
    make_tiny: Callable[..., Any], logits_of: Callable[..., torch.Tensor], tmp_path: Path
) -> None:
    """Bit by bit in the weights, and so in the logits of a model with these weights."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    oracle = make_tiny(**MXFP4)
    oracle.save_pretrained(tmp_path)
    quantise_experts(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    checkpoint = open_folder(tmp_path)
    for layer, block in enumerate(oracle.model.layers):
        prefix = f"model.layers.{layer}.mlp.experts"
        for part in ("gate_up_proj", "down_proj"):
            unpacked = convert_moe_packed_tensors(
                state[f"{prefix}.{part}_blocks"],
                state[f"{prefix}.{part}_scales"],
                dtype=torch.float32,
            )
            getattr(block.mlp.experts, part).data = unpacked
        experts = block.mlp.experts
        gate = checkpoint.take(f"{prefix}.3.gate_proj.weight")
        assert torch.equal(gate, experts.gate_up_proj[3, :, 0::2].T)
        assert torch.equal(checkpoint.take(f"{prefix}.5.down_proj.weight"), experts.down_proj[5].T)
        up_bias = checkpoint.take(f"{prefix}.2.up_proj.bias")
        assert torch.equal(up_bias, experts.gate_up_proj_bias[2, 1::2])
    ids = list(range(60, 121))
    model = load_weights(open_folder(tmp_path), torch.float32)
    with torch.inference_mode():
        expected = oracle(torch.tensor([ids])).logits[0]
    assert (logits_of(model, ids, [40, 21]) - expected[[39, 60]]).abs().max() <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_quantised", [False, True])
def test_planned_bytes_are_those_measured(
    make_tiny: Callable[..., Any], tmp_path: Path, dtype: torch.dtype, *, is_quantised: bool
) -> None:
    make_tiny(**MXFP4).save_pretrained(tmp_path)
    if is_quantised:
        quantise_experts(tmp_path)
    checkpoint = open_folder(tmp_path)
    model = load_weights(checkpoint, dtype)
    facts = Parameters.of(model.config).facts(checkpoint, dtype)
    assert not facts.is_quantised  # none of the native kernels' forms
    # Sinks stay in float32, and rotary frequencies are no tensors of the file.
    assert abs(facts.unpacked_bytes - tensor_bytes(model)) <= 3 * 6 * 2 + 64


def test_the_published_sizes_are_read() -> None:
    config = ModelConfig.from_mapping(preset("gpt-oss-20b"))
    assert config.windows is not None
    assert (config.windows.tokens, sorted(config.windows.layers)) == (128, list(range(0, 24, 2)))
    assert (config.max_position, config.rope.is_truncated) == (131072, False)
    shapes = Parameters.of(config).weights.values()
    assert sum(math.prod(shape) for shape in shapes) == pytest.approx(20.91e9, rel=1e-3)


@pytest.mark.parametrize("sizes", [[61], [1] * 24], ids=len)
def test_bfloat16_stays_near_float32(
    make_tiny: Callable[..., Any],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    sizes: list[int],
) -> None:
    """As near as the oracle's own bfloat16 is, twice over."""
    oracle = make_tiny(**GPT_OSS)
    oracle.save_pretrained(tmp_path)
    model = load_weights(open_folder(tmp_path), torch.bfloat16)
    ids = torch.randint(0, 240, (sum(sizes),), generator=torch.Generator().manual_seed(3))
    ends = torch.tensor(sizes).cumsum(0) - 1
    with torch.inference_mode():
        exact = oracle(ids.unsqueeze(0)).logits[0, ends]
        rounded = oracle.bfloat16()(ids.unsqueeze(0)).logits[0, ends].float()
    found = logits_of(model, ids.tolist(), sizes, dtype=torch.bfloat16)
    assert (found - exact).square().mean() <= 4 * (rounded - exact).square().mean()


def test_scales_that_do_not_fit_are_refused(make_tiny: Callable[..., Any], tmp_path: Path) -> None:
    make_tiny(**MXFP4).save_pretrained(tmp_path)
    quantise_experts(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    state[name] = state[name][:, :-1].contiguous()
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"down_proj_blocks has the shape \(6, 64, 1, 16\)"):
        load_weights(open_folder(tmp_path), torch.float32)


@pytest.mark.parametrize("missing", ["self_attn.sinks", "self_attn.o_proj.bias", "mlp.router.bias"])
def test_what_the_family_always_has_must_be_there(
    make_tiny: Callable[..., Any], tmp_path: Path, missing: str
) -> None:
    make_tiny(**GPT_OSS).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state[f"model.layers.2.{missing}"]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"lack 1 tensors .*model\.layers\.2\."):
        load_weights(open_folder(tmp_path), torch.float32)


def test_updates_of_stacked_experts_are_refused(
    make_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    """Their rows take turns, which an update of halves would not."""
    make_tiny(**GPT_OSS).save_pretrained(tmp_path / "base")
    name = "base_model.model.model.layers.1.mlp.experts.base_layer.lora_{}.weight"
    pair = {"A": torch.ones(6 * 2, 48), "B": torch.ones(64, 6 * 2)}
    (tmp_path / "lora").mkdir()
    save_file(
        {name.format(k): v for k, v in pair.items()}, tmp_path / "lora/adapter_model.safetensors"
    )
    settings = {"r": 2, "lora_alpha": 2, "peft_type": "LORA", "target_parameters": ["gate_up_proj"]}
    (tmp_path / "lora/adapter_config.json").write_text(json.dumps(settings))
    config = ModelConfig.from_mapping(json.loads((tmp_path / "base/config.json").read_text()))
    with pytest.raises(UnsupportedModel, match="rows of gate and up take turns; merge it"):
        AdapterSet.load({"a": str(tmp_path / "lora")}, config, torch.float32)


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        ({"batch_invariant": True}, "batch_invariant has none: leave batch_invariant out"),
        ({"layout": "cp2"}, "layout cp2 has none: take a layout of tp, pp, dp and ep alone, or"),
        ({"layout": "pp2->tp2"}, "layout pp2->tp2 has none: take a layout of tp, pp, dp and ep"),
        ({"weights": "packed"}, "sink=yes is not none"),
    ],
)
def test_forms_without_sinks_are_refused(
    make_tiny: Callable[..., Any], tmp_path: Path, settings: dict[str, Any], way_out: str
) -> None:
    from llm_engine.parallel.loading import check_layout

    make_tiny(**GPT_OSS).save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), **settings)
    with pytest.raises(InvalidConfig, match=way_out):
        check_layout(config) if config.layout else load_model(config)
