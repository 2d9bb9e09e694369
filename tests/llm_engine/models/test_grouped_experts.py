"""Experts stacked for one product: read into place, counted in bytes, equal to transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.hardware.traits import load_traits
from kernels.ledger import Ledger
from kernels.ops.block_fp8_gemm.formats.reference import pack_mxfp4, quantise_blocks, unpack_mxfp4
from llm_engine.device import EngineDevice
from llm_engine.layers.bound_ops import BoundOps, bind_ops
from llm_engine.layers.form_choice import FormQuestion, choose_forms
from llm_engine.layers.op_choice import OpSizes
from llm_engine.loader import load_weights, open_checkpoint
from llm_engine.model_config import ModelConfig
from llm_engine.models.parameters import Parameters
from llm_engine.weights.checkpoint import Checkpoint, PlacedCheckpoint
from llm_engine.weights.footprint import tensor_bytes
from llm_engine.weights.resolve import resolve

QWEN3_MOE: dict[str, Any] = {
    "family": "Qwen3Moe",
    "moe_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
GPT_OSS: dict[str, Any] = {
    "family": "GptOss",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
}
INTERPRETED = EngineDevice(torch.device("cpu"), load_traits("sm_120"))
# The other kernels have tests of their own, and take long to interpret.
OTHERS = ("rms_norm", "swiglu", "rotary_insert", "paged_prefill", "paged_decode", "moe_router")
ASKED: dict[str, str] = dict.fromkeys(OTHERS, "torch")
Save = Callable[[Any, Path], None]


def plain(oracle: Any, folder: Path) -> None:
    oracle.save_pretrained(folder)


def in_blocks(oracle: Any, folder: Path) -> None:
    """Every linear map in FP8 blocks; the oracle takes what they stand for."""
    plain(oracle, folder)
    state = load_file(folder / "model.safetensors")
    for name in [n for n in state if n.endswith("_proj.weight")]:
        values, scales = quantise_blocks(state[name], 128)
        state |= {name: values, f"{name}_scale_inv": scales}
        spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        rows, columns = values.shape
        write(oracle, name, values.float() * spread[:rows, :columns])
    save(folder, state, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})


def in_mxfp4(oracle: Any, folder: Path) -> None:
    """The stacked experts in MXFP4, as gpt-oss's are; the oracle takes what they stand for."""
    plain(oracle, folder)
    state = load_file(folder / "model.safetensors")
    for name in [n for n in state if n.endswith(("gate_up_proj", "down_proj"))]:
        packed, scales = pack_mxfp4(state.pop(name).mT.contiguous())
        state[f"{name}_blocks"] = packed.unflatten(-1, (-1, 16)).contiguous()
        state[f"{name}_scales"] = scales
        with torch.no_grad():
            oracle.get_parameter(name).copy_(unpack_mxfp4(packed, scales, torch.float32).mT)
    save(folder, state, {"quant_method": "mxfp4"})


def write(oracle: Any, name: str, weight: torch.Tensor) -> None:
    """Put a matrix of a file into transformers' model, which stacks the experts."""
    with torch.no_grad():
        if ".experts." not in name:
            oracle.get_parameter(name).copy_(weight)
            return
        prefix, _, rest = name.partition(".experts.")
        number, part, _ = rest.split(".")
        stack = "down_proj" if part == "down_proj" else "gate_up_proj"
        target = oracle.get_parameter(f"{prefix}.experts.{stack}")[int(number)]
        inner = len(weight)
        rows = slice(inner, None) if part == "up_proj" else slice(0, inner)
        target[rows].copy_(weight)


def save(folder: Path, state: dict[str, torch.Tensor], quantisation: dict[str, Any]) -> None:
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantisation}))


KINDS: dict[str, tuple[dict[str, Any], Save]] = {
    "bf16": (QWEN3_MOE, plain),
    "fp8": (QWEN3_MOE, in_blocks),
    "mxfp4": (GPT_OSS, in_mxfp4),
    "stacks of numbers": (GPT_OSS, plain),
}


def opened(folder: Path) -> Checkpoint:
    return PlacedCheckpoint(open_checkpoint(resolve(str(folder))), INTERPRETED.place)


def bound(config: ModelConfig, checkpoint: Checkpoint) -> BoundOps:
    """The ops of a device, for files as they are."""
    facts = Parameters.of(config).facts(checkpoint, torch.bfloat16)
    question = FormQuestion(
        model=config, dtype=torch.bfloat16, num_rows=4, device=INTERPRETED, stored=facts.stored
    )
    sizes = OpSizes(chunk_tokens=512, num_seqs=4, context=400, page_size=16)
    return bind_ops(
        config, torch.bfloat16, sizes, asked=ASKED, ledger=Ledger(), device=INTERPRETED,
        forms=choose_forms(question),
    )  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def saved(kind: str, make_tiny: Callable[..., Any], tmp_path: Path) -> tuple[Any, Path]:
    config, write_files = KINDS[kind]
    oracle = make_tiny(**config)
    write_files(oracle, tmp_path)
    return oracle, tmp_path


def test_experts_lie_in_one_tensor_in_the_files_format(kind: str, saved: tuple[Any, Path]) -> None:
    oracle, folder = saved
    checkpoint = opened(folder)
    config = ModelConfig.from_mapping(checkpoint.config)
    ops = bound(config, checkpoint)
    facts = Parameters.of(config).facts(checkpoint, torch.bfloat16)
    model: Any = load_weights(checkpoint, torch.bfloat16, ops.forms)
    grouped = model._layers[0].mlp.grouped
    assert grouped.kind == (kind if kind in ("fp8", "mxfp4") else "bf16")
    assert model.num_parameters == oracle.num_parameters()
    stacks = oracle.model.layers[0].mlp.experts
    for expert in range(grouped.num_experts):
        gate_up, down = grouped.expert(expert, torch.float32)
        theirs = stacks.gate_up_proj[expert], stacks.down_proj[expert]
        if config.architecture == "GptOssForCausalLM":  # transposed, gate and up taking turns
            turns = theirs[0].T
            theirs = torch.cat((turns[0::2], turns[1::2])), theirs[1].T
        if grouped.kind == "bf16":
            theirs = tuple(each.bfloat16().float() for each in theirs)
        assert torch.equal(gate_up, theirs[0])
        assert torch.equal(down, theirs[1])
    # Sinks stay in float32, and rotary frequencies are no tensors of the files.
    planned = ops.forms.weight_bytes(facts)
    assert abs(planned - tensor_bytes(model)) <= 3 * 6 * 2 + 64
    is_kept = grouped.kind != "bf16"
    assert planned < 0.8 * facts.unpacked_bytes if is_kept else planned == facts.unpacked_bytes


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[23], [1] * 3], ids=len)
def test_logits_are_as_near_as_those_of_transformers_in_bfloat16(
    saved: tuple[Any, Path],
    logits_of: Callable[..., torch.Tensor],
    sizes: list[int],
) -> None:
    """As near to float32 as the oracle's own bfloat16 is, twice over."""
    oracle, folder = saved
    checkpoint = opened(folder)
    ops = bound(ModelConfig.from_mapping(checkpoint.config), checkpoint)
    chosen = {decision.chosen for decision in ops.forms.decisions}
    assert chosen <= {"triton", "triton_decoded"}
    model = load_weights(checkpoint, torch.bfloat16, ops.forms)
    ids = torch.randint(0, 240, (sum(sizes),), generator=torch.Generator().manual_seed(3))
    ends = torch.tensor(sizes).cumsum(0) - 1
    with torch.inference_mode():
        exact = oracle(ids.unsqueeze(0)).logits[0, ends]
        rounded = oracle.bfloat16()(ids.unsqueeze(0)).logits[0, ends].float()
    found = logits_of(model, ids.tolist(), sizes, dtype=torch.bfloat16, ops=ops)
    assert (found - exact).square().mean() <= 4 * (rounded - exact).square().mean()
