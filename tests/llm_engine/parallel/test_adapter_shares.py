"""Adapters over ranks: shares that add up, and batches of several that one rank would answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.adapter_shares import HeldAdapters
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.shares import WeightShare, held_share, phase_share
from tests.llm_engine.parallel.test_layouts import MODELS

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
PROMPT = tuple(7 * i % 240 for i in range(41))
LONG = tuple((17 * i + i // 7) % 240 for i in range(61))


def sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each module."""
    wide, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        **{"q_proj": (heads, wide), "k_proj": (kv, wide), "v_proj": (kv, wide)},
        **{"o_proj": (wide, heads), "gate_proj": (inner, wide), "up_proj": (inner, wide)},
        "down_proj": (wide, inner),
    }


def places_of(config: ModelConfig, layer: int, module: str) -> dict[str, tuple[int, int]]:
    """The maps of a layer that a module names, with their sizes: one, or one of every expert."""
    if module not in MLP:
        return {f"self_attn.{module}": sizes(config)[module]}
    moe = config.moe
    if moe is None or not moe.is_sparse(layer):
        return {f"mlp.{module}": sizes(config)[module]}
    inner = dataclasses.replace(config, intermediate_size=moe.intermediate_size)
    return {f"mlp.experts.{i}.{module}": sizes(inner)[module] for i in range(moe.num_experts)}


def write(
    model: Path,
    folder: Path,
    modules: tuple[str, ...],
    seed: int,
    rank: int = 3,
) -> None:
    """A PEFT folder of random matrices for the modules of a model."""
    config = ModelConfig.from_mapping(json.loads((model / "config.json").read_text()))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(config.num_layers):
        for module in modules:
            for place, (num_outputs, num_inputs) in places_of(config, layer, module).items():
                name = f"base_model.model.model.layers.{layer}.{place}"
                a = torch.randn(rank, num_inputs, generator=generator) * 0.2
                b = torch.randn(num_outputs, rank, generator=generator) * 0.2
                tensors |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "target_modules": list(modules)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")


@pytest.fixture
def adapters(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Folders of two adapters for a model: one of every module, one of some."""

    def folders(model: Path, **asked: Any) -> dict[str, str]:
        write(model, tmp_path / "z-all", ATTENTION + MLP, seed=1, **asked)
        write(model, tmp_path / "some", ("v_proj", "o_proj", "up_proj"), seed=2, rank=5, **asked)
        return {"z-all": str(tmp_path / "z-all"), "some": str(tmp_path / "some")}

    return folders


# Chunks of a long prompt beside short ones, each adapter with and without neighbours of its own.
ROUNDS = (
    (("z-all", LONG),),
    (("some", PROMPT), PROMPT, ("z-all", PROMPT), ("some", LONG[:1]), ("z-all", LONG[:33])),
    (("some", PROMPT[:33] + LONG[:4]), ("z-all", PROMPT[:33] + LONG[:4])),
)


def check(crew: Any, alone: Callable[..., Any], folder: Path, layout: str, **settings: Any) -> Any:
    found = crew.generate(layout, folder, ROUNDS, **settings)
    expected = [tokens for tokens, _ in alone(folder, ROUNDS, **settings)]
    assert found["tokens"] == expected
    # Adapters say different things of one prompt, so equal tokens mean equal adapters.
    some, none, everything, *_ = expected[1]
    assert len({tuple(tokens) for tokens in (some, none, everything)}) == 3
    return found


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("tp2", "llama"),
        ("tp2", "odd"),
        ("tp2", "one_kv"),
        ("tp2", "bias"),
        ("cp2", "qwen3"),
        ("cp2,gather", "llama"),
        ("cp2,ring", "odd"),
        ("cp2->tp2", "llama"),
        ("cp2->tp2", "moe"),
        ("pp2", "qwen3"),
        ("pp2", "moe"),
        ("ep2", "moe"),
        ("tp2,ep2", "moe"),
        ("cp2,ep2", "moe"),
        ("cp2,ep2,ring", "moe"),
        ("cp2,ep2,a2a", "moe"),
        ("pp2->tp2", "llama"),
        ("pp2->tp2", "moe"),
        ("pp2->tp2,ep2", "moe"),
        ("dp2", "qwen3"),
        ("dp2,ep2", "moe"),
        ("dp2,ep2,a2a", "moe"),
        ("cp2,ep2,a2a->tp2,ep2", "moe"),
        ("tp2", "moe"),
        ("cp2", "moe"),
    ],
)
def test_two_ranks(
    layout: str,
    model: str,
    pair: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
    adapters: Callable[..., dict[str, str]],
) -> None:
    folder = model_folder(**MODELS[model])
    found = check(pair, alone, folder, layout, adapters=adapters(folder))
    assert dict(found["decisions"])["adapters"] == "cut as the maps that they update"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("tp2,cp2->tp4", "qwen3"),
        ("tp2,pp2", "llama"),
        ("tp2,cp2,ep2", "moe"),
        ("dp2,cp2", "moe"),
        ("dp2,cp2,ep4,a2a->dp2,tp2,ep4", "moe"),
    ],
)
def test_four_ranks(
    layout: str,
    model: str,
    four: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
    adapters: Callable[..., dict[str, str]],
) -> None:
    folder = model_folder(**MODELS[model])
    check(four, alone, folder, layout, adapters=adapters(folder))


@pytest.mark.parametrize(
    ("text", "model"),
    [
        *((text, "odd") for text in ("tp2", "tp3", "cp2->tp2", "pp2", "tp2,pp2", "pp2->tp2")),
        ("tp2,cp2->tp4", "one_kv"),
        *((text, "moe") for text in ("tp2", "ep2", "tp2,ep2", "tp4,ep2", "pp2")),
    ],
)
def test_shares_add_up_to_the_whole_update(
    text: str,
    model: str,
    model_folder: Callable[..., Path],
    adapters: Callable[..., dict[str, str]],
) -> None:
    """In float64: outputs that are split are joined, terms of a sum added; in both phases."""
    folder = model_folder(**MODELS[model])
    config = ModelConfig.from_mapping(json.loads((folder / "config.json").read_text()))
    whole = AdapterSet.load(adapters(folder), config, torch.float64)
    layouts = PhaseLayouts.parse(text)
    expected = {
        (adapter.name, layer, part): update.b_OR @ update.a_RI
        for adapter in whole.adapters
        for (layer, part), update in adapter.updates.items()
    }
    for layout in (layouts.prefill, layouts.decode):
        found = {key: torch.zeros_like(product) for key, product in expected.items()}
        for rank in range(0, layout.num_ranks, layout.cp):  # cp ranks have the same weights
            used, held = phase_share(config, layout, rank), held_share(config, layouts, rank)
            for adapter in HeldAdapters.of(whole, config, layouts, held).used(used).adapters:
                for (layer, part), update in adapter.updates.items():
                    placed = found[adapter.name, layer + held.layers.start, part]
                    add(placed, update.b_OR @ update.a_RI, part, used, config)
        for (name, layer, part), product in expected.items():
            # Ranks beside those of tp, which have other experts, have the same dense maps.
            copies = layout.stage // layout.unit if part in ("out", "down") else 1
            torch.testing.assert_close(found[name, layer, part], copies * product)


def add(
    whole: torch.Tensor, product: torch.Tensor, part: str, used: WeightShare, config: ModelConfig
) -> None:
    """Put a rank's part of a map where its heads and channels are in the whole one."""
    dim = config.head_dim
    run = used.expert_channels if part.startswith("experts") else used.channels
    channels = torch.tensor(list(run), dtype=torch.int64)
    q, kv = (
        torch.tensor([head * dim + i for head in heads for i in range(dim)])
        for heads in (used.heads.queries, used.heads.kv)
    )
    if part.endswith(("out", "down")):
        whole[:, q if part == "out" else channels] += product
        return
    first_k = config.num_heads * dim
    first_v = first_k + config.num_kv_heads * dim
    rows = torch.cat((channels, len(whole) // 2 + channels))
    if part == "qkv":
        rows = torch.cat((q, first_k + kv, first_v + kv))
    whole[rows] = product  # which may lie on several ranks


@pytest.mark.parametrize("layout", ["tp2", "ep2", "cp2,gather"])
def test_chunks_that_hide_exchanges_keep_their_adapters(
    layout: str,
    pair: Any,
    alone: Callable[..., Any],
    model_folder: Callable[..., Path],
    adapters: Callable[..., dict[str, str]],
) -> None:
    folder = model_folder(**MODELS["moe" if "ep" in layout else "llama"])
    folders, rounds = adapters(folder), ((("z-all", LONG + LONG), ("some", LONG), LONG),)
    settings = {"adapters": folders, "prefill_chunk_tokens": 200}
    found = pair.generate(layout, folder, rounds, overlap="on", **settings)
    assert found["tokens"] == [tokens for tokens, _ in alone(folder, rounds, **settings)]
