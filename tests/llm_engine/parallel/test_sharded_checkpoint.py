"""Shares put together are the file; what another rank holds is never read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from llm_engine.layers.linear import Linear
from llm_engine.loader import read_tensors
from llm_engine.model_config import ModelConfig
from llm_engine.models.llama import LlamaModel
from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.sharded_checkpoint import ShardedCheckpoint
from llm_engine.parallel.shares import held_share, local_config, phase_share, stage_share
from llm_engine.parallel.slices import BlockSlices, SlicedLinear
from llm_engine.weights.checkpoint import UnpackedCheckpoint
from llm_engine.weights.safetensors import SafetensorsCheckpoint

MOE = {
    "family": "Qwen3Moe",
    "moe_intermediate_size": 40,
    "num_experts": 5,
    "num_experts_per_tok": 3,
    "mlp_only_layers": [1],
}
BIASED = {"family": "Llama", "attention_bias": True, "mlp_bias": True}


class Watched(SafetensorsCheckpoint):
    """Counts the bytes that are read."""

    num_bytes = 0

    def take(self, name: str) -> torch.Tensor:
        found = super().take(name)
        self.num_bytes += found.nbytes
        return found

    def take_part(self, name: str, dim: int, part: range) -> torch.Tensor:
        found = super().take_part(name, dim, part)
        self.num_bytes += found.nbytes
        return found


def views(folder: Path, text: str) -> list[tuple[Watched, ShardedCheckpoint]]:
    layouts = PhaseLayouts.parse(text)
    made: list[tuple[Watched, ShardedCheckpoint]] = []
    for rank in range(layouts.num_ranks):
        whole = Watched(folder)
        config = ModelConfig.from_mapping(whole.config)
        share, stage = held_share(config, layouts, rank), stage_share(config, layouts, rank)
        opened = UnpackedCheckpoint(whole)
        view = ShardedCheckpoint(opened, config, share, keeps_rows=layouts.is_hybrid, stage=stage)
        made.append((whole, view))
    return made


@pytest.mark.parametrize("text", ["tp2", "tp3"])
def test_slices_put_together_are_the_file(text: str, model_folder: Callable[..., Path]) -> None:
    folder = model_folder(num_key_value_heads=6)
    shards = [view for _, view in views(folder, text)]
    whole = SafetensorsCheckpoint(folder)
    layer = "model.layers.1"
    dims = {f"{layer}.self_attn.{name}_proj.weight": 0 for name in "qkv"}
    dims |= {f"{layer}.mlp.{name}_proj.weight": 0 for name in ("gate", "up")}
    dims |= {f"{layer}.self_attn.o_proj.weight": 1, f"{layer}.mlp.down_proj.weight": 1}
    dims |= {"model.embed_tokens.weight": 0, "lm_head.weight": 0}
    for name, dim in dims.items():
        shapes = [shard.stored(name).shape for shard in shards]
        parts = [shard.take(name) for shard in shards]
        assert [tuple(part.shape) for part in parts] == shapes
        assert torch.equal(torch.cat(parts, dim), whole.take(name)), name


def test_ranks_read_the_file_once_between_them(model_folder: Callable[..., Path]) -> None:
    """Matrices are read by one rank each; only norms and routers, which are small, by all."""
    folder = model_folder(**MOE)
    for text in ("tp2,ep2", "tp2", "pp2"):
        read = []
        for rank, (whole, view) in enumerate(views(folder, text)):
            config = ModelConfig.from_mapping(whole.config)
            share = held_share(config, PhaseLayouts.parse(text), rank)
            read_tensors(local_config(config, share, share.heads), view, torch.float32)
            read.append(whole.num_bytes)
        names = SafetensorsCheckpoint(folder)
        all_names = names.untaken()
        total = sum(names.stored(name).num_bytes for name in all_names)
        small = sum(
            names.stored(n).num_bytes
            for n in all_names
            if "norm" in n or n.endswith("mlp.gate.weight")
        )
        assert total <= sum(read) <= total + small
        assert max(read) < 0.65 * total


def test_biases_of_a_sum_are_on_one_rank(model_folder: Callable[..., Path]) -> None:
    first, second = (view for _, view in views(model_folder(**BIASED), "tp2"))
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        assert first.has(f"model.layers.0.{name}.bias")
        assert not second.has(f"model.layers.0.{name}.bias")
    assert second.take("model.layers.0.self_attn.q_proj.bias").shape == (48,)


def test_layers_and_experts_count_from_the_ranks_first(model_folder: Callable[..., Path]) -> None:
    folder = model_folder(**MOE)
    whole = SafetensorsCheckpoint(folder)
    (_, second) = (view for _, view in views(folder, "pp2"))
    assert torch.equal(
        second.take("model.layers.0.input_layernorm.weight"),
        whole.take("model.layers.2.input_layernorm.weight"),
    )
    assert second.take("model.embed_tokens.weight").shape == (0, 48)
    (_, second) = (view for _, view in views(folder, "ep2"))
    name = "mlp.experts.{}.gate_proj.weight"
    assert torch.equal(
        second.take(f"model.layers.0.{name.format(0)}"),
        whole.take(f"model.layers.0.{name.format(3)}"),
    )


def test_a_rank_holds_its_stage_and_slices_of_the_rest(model_folder: Callable[..., Path]) -> None:
    """Of pp2->tp2 a rank reads half of the layers whole, and half of each other one."""
    folder, layouts = model_folder(num_hidden_layers=4), PhaseLayouts.parse("pp2->tp2")
    for rank, (whole, view) in enumerate(views(folder, "pp2->tp2")):
        config = ModelConfig.from_mapping(whole.config)
        held, stage = held_share(config, layouts, rank), stage_share(config, layouts, rank)
        model = read_tensors(local_config(config, held, held.heads), view, torch.float32)
        assert isinstance(model, LlamaModel)
        assert stage is not None
        used = phase_share(config, layouts.decode, rank)
        for index, layer in enumerate(model._layers):
            block = layer.attention
            if index in stage.layers:
                block = BlockSlices(stage, used, config.head_dim).attention(block)
                kept = [block.qkv, block.out, layer.attention.qkv, layer.attention.out]
                # Slices are views: they take no memory of their own.
                assert memory(kept) == memory(kept[2:])
            assert outputs(block.qkv) == (len(used.heads.queries) + 2 * len(used.heads.kv)) * 16
        names = SafetensorsCheckpoint(folder)
        sizes = {name: names.stored(name).num_bytes for name in names.untaken()}
        ends = sum(size for name, size in sizes.items() if ".layers." not in name)
        layers = sum(sizes.values()) - ends
        assert 0.75 * layers <= whole.num_bytes <= 0.76 * layers + ends


def memory(linears: list[Linear]) -> set[int]:
    parts = [p for each in linears for p in (each.parts if type(each) is SlicedLinear else (each,))]
    weights = [part.weight for part in parts if part.weight is not None]
    return {weight.untyped_storage().data_ptr() for weight in weights}


def outputs(linear: Linear) -> int:
    parts = linear.parts if isinstance(linear, SlicedLinear) else (linear,)
    return sum(part.weight.shape[0] for part in parts if part.weight is not None)
