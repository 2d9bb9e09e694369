"""PEFT folders that cannot be honoured are refused, naming what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.errors import UnsupportedModel
from llm_engine.model_config import ModelConfig

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "sets use_dora to True"),
    "bias": ({"bias": "all"}, "sets bias to 'all'"),
    "other rank": (
        {"r": 5},
        r"lora_A of model\.layers\.0\.self_attn\.q_proj has the shape \(4, 48",
    ),
    "other kind": ({"peft_type": "IA3"}, "'IA3'; supported: LORA"),
    "no rank": ({"r": None}, "cannot read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_configurations_it_cannot_honour_are_refused(kit: Any, tmp_path: Path, fault: str) -> None:
    settings, message = FAULTS[fault]
    kit.write(tmp_path / "a", "q_proj")
    path = tmp_path / "a" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(UnsupportedModel, match=message):
        _load(kit, tmp_path / "a")


@pytest.mark.parametrize("fault", ["layer 3", "no B", "wide", "embedding", "empty", "broken"])
def test_tensors_that_do_not_fit_are_named(kit: Any, tmp_path: Path, fault: str) -> None:
    kit.write(tmp_path / "a", "q_proj")
    path = tmp_path / "a" / "adapter_model.safetensors"
    tensors = load_file(path)
    b_name = "base_model.model.model.layers.2.self_attn.q_proj.lora_B.weight"
    b = tensors.pop(b_name)
    message = {
        "layer 3": "adapts layer 3, but the model has 3",
        "no B": r"layers\.2\.self_attn\.q_proj has no lora_B",
        "wide": r"lora_B of .*layers\.2.* shape \(96, 5\).* ask for \(96, 4\)",
        "embedding": r"embed_tokens\.lora_embedding_A has no place",
        "empty": "holds no LoRA matrices",
        "broken": "cannot read",
    }[fault]
    tensors |= {
        "layer 3": {b_name: b, b_name.replace("layers.2", "layers.3"): b.clone()},
        "wide": {b_name: torch.zeros(96, 5)},
        "embedding": {b_name: b, "base_model.model.model.embed_tokens.lora_embedding_A": b.clone()},
    }.get(fault, {})
    save_file({} if fault == "empty" else tensors, path)
    if fault == "broken":
        path.write_bytes(b"no tensors")
    with pytest.raises(UnsupportedModel, match=message):
        _load(kit, tmp_path / "a")


def _load(kit: Any, folder: Path) -> AdapterSet:
    config = ModelConfig.from_mapping(json.loads((kit.base / "config.json").read_text()))
    return AdapterSet.load({"a": str(folder)}, config, torch.float32)
