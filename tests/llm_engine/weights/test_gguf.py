"""GGUF files read back as what transformers computes with the same dequantised weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from llm_engine.errors import UnsupportedModel
from llm_engine.loader import load_weights
from llm_engine.weights.checkpoint import UnpackedCheckpoint
from llm_engine.weights.gguf import GgufCheckpoint

IDS = list(range(30, 70))
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
# Blocks of 256 columns.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": PLAIN}),
    "llama, linear rope": (
        "Llama",
        {"rope_parameters": {**PLAIN, "rope_type": "linear", "factor": 2.0}},
    ),
    "qwen2": ("Qwen2", {"rope_parameters": PLAIN}),
    "qwen3": ("Qwen3", {"rope_parameters": PLAIN, "tie_word_embeddings": True}),
    "qwen3, yarn": (
        "Qwen3",
        {
            "rope_parameters": {
                **PLAIN,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "qwen3moe": (
        "Qwen3Moe",
        {
            "rope_parameters": PLAIN,
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
}


def _oracle_logits(oracle: Any) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([IDS])).logits[0, -1]


@pytest.mark.parametrize(
    "kind", ["F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "Q4_K", "Q6_K"]
)
def test_every_quantisation_equals_transformers(
    make_tiny: Callable[..., Any],
    write_gguf: Callable[..., None],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    kind: str,
) -> None:
    sizes = WIDE if kind.endswith("K") else SIZES
    oracle = make_tiny(**sizes, num_key_value_heads=2, rope_parameters=PLAIN)
    write_gguf(oracle, tmp_path / "m.gguf", kind)
    checkpoint = GgufCheckpoint(tmp_path / "m.gguf")
    assert checkpoint.eos_token_ids == {256}
    model = load_weights(UnpackedCheckpoint(checkpoint), torch.float32)
    expected = _oracle_logits(oracle)
    scale = max(1.0, expected.abs().max().item())
    assert (logits_of(model, IDS, [40])[0] - expected).abs().max() <= 1e-4 * scale


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_every_architecture_equals_transformers(
    make_tiny: Callable[..., Any],
    write_gguf: Callable[..., None],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    family: str,
    kind: str,
) -> None:
    name, overrides = FAMILIES[family]
    oracle = make_tiny(name, **(SIZES | overrides))
    write_gguf(oracle, tmp_path / "m.gguf", kind, arch=family.partition(",")[0])
    model = load_weights(UnpackedCheckpoint(GgufCheckpoint(tmp_path / "m.gguf")), torch.float32)
    assert model.num_parameters == oracle.num_parameters()
    assert (logits_of(model, IDS, [40])[0] - _oracle_logits(oracle)).abs().max() <= 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3moe"])
def test_packed_tensors_are_the_dequantised_ones(
    make_tiny: Callable[..., Any],
    write_gguf: Callable[..., None],
    tmp_path: Path,
    family: str,
) -> None:
    """In the same row order too, which differs from the file's for q and k of a Llama."""
    name, overrides = FAMILIES[family]
    oracle = make_tiny(name, **(SIZES | overrides))
    write_gguf(oracle, tmp_path / "m.gguf", "Q4_0", arch=family)
    packed, plain = (GgufCheckpoint(tmp_path / "m.gguf") for _ in range(2))
    num_packed = 0
    for tensor in plain.untaken():
        blocks, values = packed.take_packed(tensor), plain.take(tensor)
        if blocks is None:
            assert packed.stored(tensor).kind == "F32"
            continue
        num_packed += 1
        assert torch.equal(blocks.dequantised(), values)
        with pytest.raises(AssertionError, match="read twice"):
            packed.take(tensor)
    matrices = [p for p in oracle.parameters() if p.dim() == 2]
    assert num_packed >= len(matrices) - 3  # routers are not quantised


def test_rope_divisors_are_llama3_scaling(
    make_tiny: Callable[..., Any],
    write_gguf: Callable[..., None],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
) -> None:
    oracle = make_tiny(**SIZES)
    theirs = oracle.model.rotary_emb.inv_freq
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    divisors = (plain / theirs).float().numpy()
    write_gguf(oracle, tmp_path / "m.gguf", "F32", rope_freqs__weight=divisors)
    model = load_weights(GgufCheckpoint(tmp_path / "m.gguf"), torch.float32)
    assert (logits_of(model, IDS, [40])[0] - _oracle_logits(oracle)).abs().max() <= 1e-4


def test_files_it_cannot_run_are_refused(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_truncated_file_is_refused(
    make_tiny: Callable[..., Any], write_gguf: Callable[..., None], tmp_path: Path, share: float
) -> None:
    write_gguf(make_tiny(**SIZES, rope_parameters=PLAIN), tmp_path / "m.gguf", "Q8_0")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UnsupportedModel, match="cannot read"):
        GgufCheckpoint(tmp_path / "m.gguf")


def test_a_tensor_that_nothing_can_dequantise_is_named(tmp_path: Path) -> None:
    from llm_engine.weights.gguf import GgufTensor

    checkpoint = object.__new__(GgufCheckpoint)
    kind = gguf.GGMLQuantizationType.I8
    from llm_engine.weights.checkpoint import TakenNames

    checkpoint._path = tmp_path
    checkpoint._names = TakenNames({"x"})
    checkpoint._is_interleaved = False
    checkpoint._tensors = {"x": GgufTensor(kind, (1, 4), np.zeros((1, 4), np.uint8))}
    with pytest.raises(UnsupportedModel, match="stores x as I8"):
        checkpoint.take("x")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3moe"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_packed_arithmetic_stays_near_the_exact(
    make_tiny: Callable[..., Any],
    write_gguf: Callable[..., None],
    logits_of: Callable[..., torch.Tensor],
    tmp_path: Path,
    family: str,
    kind: str,
) -> None:
    """Rounding of activations to 8 bits moves the logits; a wrong row or scale would do more."""
    name, overrides = FAMILIES[family]
    oracle = make_tiny(name, **(SIZES | overrides | {"head_dim": 32}))
    write_gguf(oracle, tmp_path / "m.gguf", kind, arch=family)
    model = load_weights(GgufCheckpoint(tmp_path / "m.gguf"), torch.float32)
    packed = logits_of(model, IDS, [33, 7], is_native=True)[-1]
    expected = _oracle_logits(oracle)
    bound = {"Q4_0": 0.04, "Q8_0": 1e-3}[kind]  # three to five times what was measured
    assert (packed - expected).norm() <= bound * expected.norm()
