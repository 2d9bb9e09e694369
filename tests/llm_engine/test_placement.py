"""Every tensor of a step is on the engine's device, and nothing is read back on the way.

Fake tensors lie on a device that does not exist; an op over two devices, or one that reads a value
back, raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from kernels.hardware.traits import load_traits
from kernels.ledger import Ledger
from kernels.ops.moe_gemm.experts import ExpertWeights
from kernels.ops.moe_router.routing import Routing
from kernels.ops.moe_router.sorting import sort_tokens
from llm_engine.cache.geometry import cache_layout
from llm_engine.decode_graphs import DecodeGraphs
from llm_engine.device import EngineDevice
from llm_engine.layers.bound_ops import BoundOps, bind_ops
from llm_engine.layers.op_choice import OpSizes
from llm_engine.model_config import ModelConfig
from llm_engine.models.parameters import Parameters
from llm_engine.models.registry import model_class
from llm_engine.runner import Runner
from llm_engine.sequence import Chunk, Sequence

_setup_privateuseone_for_python_backend("paper")  # a device of that name, without code
PLACE = torch.device("paper", 0)
PAGE = 4
RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "rope_theta": 10000.0,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "Qwen2 with windows": {
        "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 8,
        "max_window_layers": 1,
    },
    "Qwen3-MoE": {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "norm_topk_prob": True,
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2,
        "sliding_window": 8,
    },
}  # fmt: skip


class EmptyWeights:
    """A checkpoint of tensors that are on the device and have no values."""

    keeps_rows = False

    def __init__(self, config: ModelConfig) -> None:
        parameters = Parameters.of(config)
        self._shapes = {**parameters.weights, **parameters.biases}

    def has(self, name: str) -> bool:
        return name in self._shapes

    def take(self, name: str) -> torch.Tensor:
        return torch.empty(self._shapes[name], device=PLACE)

    def take_packed(self, name: str) -> None:
        return None


class Pages:
    """Page tables of sequences, in every group."""

    page_size = PAGE
    num_pages = 50

    def __init__(self, config: ModelConfig) -> None:
        self.layout = cache_layout(config, page_tokens=PAGE, layer_token_bytes=1)
        self.pages_by_group = [self.num_pages] * len(self.layout.groups)

    def table(self, seq_id: int, group: int = 0) -> list[int]:
        return [(seq_id * 10 + i) % self.num_pages for i in range(8)]


def on_device(*tensors: torch.Tensor | None) -> None:
    assert all(tensor.device == PLACE for tensor in tensors if tensor is not None), tensors


def rotary_insert(q: Any, k: Any, v: Any, cache: Any, *, rotation: Any, insertion: Any) -> Any:
    on_device(q, k, v, cache, rotation.cos, rotation.sin, insertion.slots)
    return torch.empty_like(q), None, cache


def paged(q: Any, cache: Any, *indices: torch.Tensor, **options: Any) -> Any:
    on_device(q, cache, *indices, options.get("sink_H"))
    return torch.empty_like(q), None


def moe_router(logits_NE: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    on_device(logits_NE)
    weights_Nk, ids_Nk = logits_NE.float().topk(routing.k)
    return ids_Nk.int(), weights_Nk


def moe_gemm(
    h_NC: torch.Tensor, ids_Nk: torch.Tensor, weights_Nk: torch.Tensor, experts: ExpertWeights
) -> torch.Tensor:
    """What the grouped product does around its kernels, whose launches need a real device."""
    found = [getattr(experts, field.name) for field in fields(experts)]
    on_device(h_NC, ids_Nk, weights_Nk, *(x for x in found if isinstance(x, torch.Tensor)))
    sorting = sort_tokens(ids_Nk, experts.num_experts, 16)
    on_device(sorting.order_P, sorting.expert_B)
    return torch.empty_like(h_NC)


def attending(ops: BoundOps) -> BoundOps:
    """The ops, with stand-ins for those that only kernels run; they look where arguments are."""
    forms = ops.forms
    if forms.moe_gemm is not None:
        forms = replace(forms, moe_gemm=moe_gemm)
    return replace(
        ops, rotary_insert=rotary_insert, paged_prefill=paged, paged_decode=paged,
        moe_router=moe_router, forms=forms,
    )  # fmt: skip


def made(family: str, asked: dict[str, str]) -> Runner:
    """A model of empty weights, and what runs it; within a mode of fake tensors."""
    config = ModelConfig.from_mapping(RAW | FAMILIES[family])
    device = EngineDevice(PLACE, load_traits("sm_120"))
    sizes = OpSizes(chunk_tokens=16, num_seqs=4, context=64, page_size=PAGE)
    asked = {"rms_norm": "torch", "swiglu": "torch"} | asked
    ops = bind_ops(config, torch.bfloat16, sizes, asked=asked, ledger=Ledger(), device=device)
    weights: Any = EmptyWeights(config)
    model = model_class(config.architecture).load(config, weights, torch.bfloat16, ops.forms)
    pages: Any = Pages(config)
    return Runner(model, pages, torch.bfloat16, attending(ops))


@pytest.fixture(params=FAMILIES)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with FakeTensorMode():
        yield made(request.param, {})


def sequence(seq_id: int, num_tokens: int) -> Sequence:
    return Sequence(seq_id, [1] * num_tokens, num_tokens, 30)


def test_a_step_stays_on_the_device(runner: Runner) -> None:
    chunks = [
        Chunk(sequence(0, 5), 4, 1, is_last=True),
        Chunk(sequence(1, 9), 8, 1, is_last=True),
        Chunk(sequence(2, 12), 0, 12, is_last=True),
        Chunk(sequence(3, 20), 0, 7, is_last=False),
    ]
    logits_SV = runner.run(chunks)
    assert logits_SV is not None
    assert (logits_SV.device, tuple(logits_SV.shape)) == (PLACE, (3, 300))
    assert all(layer.device == PLACE for layer in runner.cache.layers)


def test_pages_go_to_the_host_and_back(runner: Runner) -> None:
    (storage,) = runner.storages
    saved = storage.copy_out(0, [3, 1])
    assert {tensor.device.type for tensor in saved} == {"cpu"}
    storage.copy_in(0, [2, 4], saved)
    storage.copy(0, 2, 5)
    storage.give_back(0, [2])


def test_a_replayed_step_reads_one_place(runner: Runner) -> None:
    if runner.storages and len(runner._pool.layout.groups) > 1:
        pytest.skip("models with windows are not replayed")
    graphs = DecodeGraphs(
        runner, runner._model, runner._ops, runner.cache, runner._pool,
        num_seqs=4, max_pages=8, record=lambda compute: compute,
    )  # fmt: skip
    logits_BV = graphs._graphs[4]()
    assert (logits_BV.device, tuple(logits_BV.shape)) == (PLACE, (4, 300))


def test_a_mix_of_devices_is_noticed(runner: Runner) -> None:
    model: Any = runner._model
    model.rotary._frequencies = torch.empty(4)
    with pytest.raises((RuntimeError, AssertionError)):
        runner.run([Chunk(sequence(0, 5), 0, 5, is_last=True)])
