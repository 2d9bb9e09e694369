"""Folders of safetensors: read once, lazily, and refused by name when something is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_engine.errors import UnsupportedModel
from llm_engine.loader import load_weights
from llm_engine.weights.safetensors import INDEX_NAME, SafetensorsCheckpoint

IDS = list(range(30, 70))


def _copy(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def _oracle_logits(oracle: Any) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([IDS])).logits[0, -1]


def test_shards_are_read_once_and_to_the_end(
    tiny_folder: Path, tiny_oracle: Any, logits_of: Callable[..., torch.Tensor]
) -> None:
    assert len(list(tiny_folder.glob("*.safetensors"))) > 2
    checkpoint = SafetensorsCheckpoint(tiny_folder)
    assert not checkpoint._shards
    model = load_weights(checkpoint, torch.float32)
    assert checkpoint.untaken() == []
    assert (logits_of(model, IDS, [40])[0] - _oracle_logits(tiny_oracle)).abs().max() <= 1e-4


def test_a_tensor_is_never_read_twice_and_opens_its_shard_alone(tiny_folder: Path) -> None:
    checkpoint = SafetensorsCheckpoint(tiny_folder)
    assert checkpoint.take_packed("model.norm.weight") is None
    checkpoint.take("model.norm.weight")
    assert len(checkpoint._shards) == 1
    with pytest.raises(AssertionError, match="read twice"):
        checkpoint.take("model.norm.weight")


def test_headers_tell_shape_kind_and_size(tiny_folder: Path) -> None:
    stored = SafetensorsCheckpoint(tiny_folder).stored("model.layers.0.self_attn.k_proj.weight")
    assert (stored.shape, stored.kind, stored.num_bytes) == ((32, 48), "F32", 32 * 48 * 4)


def test_eos_ids_come_from_both_configs(tiny_folder: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 7]}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert SafetensorsCheckpoint(tmp_path).eos_token_ids == {5, 6, 7}


def test_a_tensor_without_a_place_is_refused(make_tiny: Callable[..., Any], tmp_path: Path) -> None:
    make_tiny().save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.1.self_attn.sinks"] = torch.zeros(6)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"no place .*self_attn\.sinks"):
        load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)


def test_missing_shards_are_named(tiny_folder: Path, tmp_path: Path) -> None:
    _copy(tiny_folder, tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    shards[1].unlink()
    with pytest.raises(UnsupportedModel, match=f"1 of {len(shards)} shards .*{shards[1].name}"):
        load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)


def test_an_index_that_names_an_absent_tensor_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    _copy(tiny_folder, tmp_path)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    shards = sorted(set(index["weight_map"].values()))
    wrong = next(s for s in shards if s != index["weight_map"]["model.norm.weight"])
    index["weight_map"]["model.norm.weight"] = wrong
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(UnsupportedModel, match=rf"places model\.norm\.weight in {wrong}"):
        SafetensorsCheckpoint(tmp_path).take("model.norm.weight")


def test_an_index_may_not_lead_out_of_the_folder(tiny_folder: Path, tmp_path: Path) -> None:
    _copy(tiny_folder, tmp_path)
    index = {"weight_map": {"model.norm.weight": "../model.safetensors"}}
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(UnsupportedModel, match="no file name"):
        SafetensorsCheckpoint(tmp_path).has("model.norm.weight")


@pytest.mark.parametrize("size_bytes", [0, 4, 40, 3000])
def test_a_truncated_file_is_refused(
    make_tiny: Callable[..., Any], tmp_path: Path, size_bytes: int
) -> None:
    make_tiny().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size_bytes])
    with pytest.raises(UnsupportedModel, match=r"cannot read .*model\.safetensors"):
        load_weights(SafetensorsCheckpoint(tmp_path), torch.float32)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e5m2, torch.float8_e4m3fn])
def test_an_unsupported_dtype_is_named(
    tiny_folder: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    save_file({"x": torch.zeros(2, 2).to(dtype)}, tmp_path / "model.safetensors")
    kind = {torch.int8: "I8", torch.float8_e5m2: "F8_E5M2"}.get(dtype, "F8_E4M3")
    with pytest.raises(UnsupportedModel, match=f"stores x as {kind}; supported: F64, F32"):
        SafetensorsCheckpoint(tmp_path).take("x")


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnsupportedModel, match=r"cannot read .*config\.json"):
        SafetensorsCheckpoint(tmp_path)
