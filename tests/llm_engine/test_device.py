"""An engine on a device, as far as a CPU shows it: kernels interpreted, choices on paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.hardware.host_memory import MachineMemory
from kernels.hardware.traits import load_traits
from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.decode_graphs import Compute, DecodeGraphs, graph_sizes
from llm_engine.device import EngineDevice
from llm_engine.engine import LLMEngine
from llm_engine.errors import InvalidConfig
from llm_engine.graph_choice import GRAPHS, ONE_BY_ONE, choose_graphs
from llm_engine.loader import LoadedModel, load_model
from llm_engine.model_config import ModelConfig
from llm_engine.types import GenerationRequest, SamplingParams

PROMPTS = ("to be or not to be", "abc", "a longer prompt that takes more than one page", "zz top")
DEVICE_OPS = ("rms_norm", "swiglu", "rotary_insert", "paged_prefill", "paged_decode", "sampler")


def interpreted() -> EngineDevice:
    """Kernels of a device of the family sm_120, over tensors of the CPU."""
    return EngineDevice(torch.device("cpu"), load_traits("sm_120"))


def on_paper() -> EngineDevice:
    """A device that is not here."""
    return EngineDevice(torch.device("cuda", 0), load_traits("sm_120"))


def settings(folder: Path, **more: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder), dtype="float32", page_size=4, prefill_chunk_tokens=16, **more
    )


def requests(num: int = len(PROMPTS), tokens: int = 3, **params: Any) -> list[GenerationRequest]:
    params = {"temperature": 0.0, "ignore_eos": True} | params
    return [
        GenerationRequest(
            f"r{i}", None, tuple(PROMPTS[i % 4].encode()),
            SamplingParams(max_tokens=tokens + i % 3, **params),
        )
        for i in range(num)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def on_device(tiny_folder: Path) -> LoadedModel:
    return load_model(settings(tiny_folder), interpreted())


@pytest.mark.slow
def test_tokens_are_those_of_the_cpu(
    tiny_folder: Path, tiny_loaded: LoadedModel, on_device: LoadedModel, tokens_of: Any
) -> None:
    config = settings(tiny_folder, max_num_seqs=4)
    expected = tokens_of(LLMEngine(tiny_loaded, config).generate(requests()))
    engine = LLMEngine(on_device, config)
    chosen = {decision.what: decision.chosen for decision in engine.ledger}
    assert {name: chosen[name] for name in DEVICE_OPS} == dict.fromkeys(DEVICE_OPS, "triton")
    assert chosen["weights"] == "unpacked"
    assert tokens_of(engine.generate(requests())) == expected
    engine.check_integrity()


@pytest.mark.slow
def test_a_page_that_left_for_the_host_comes_back(
    tiny_folder: Path, tiny_loaded: LoadedModel, on_device: LoadedModel, tokens_of: Any
) -> None:
    config = settings(
        tiny_folder, max_num_seqs=2, host_cache_bytes=1 << 20, kv_cache_bytes=56_000,
        max_model_len=60, preemption="copy",
    )  # fmt: skip
    answers = []
    for loaded in (tiny_loaded, on_device):
        engine = LLMEngine(loaded, config)
        first, again = engine.generate(requests()), engine.generate(requests())
        answers.append((tokens_of(first), tokens_of(again)))
        engine.check_integrity()
    assert answers[0] == answers[1]
    assert answers[1][0] == answers[1][1]


class Replayed:
    """Records nothing: computes again, from the same memory, and counts."""

    def __init__(self) -> None:
        self.num_replays = 0

    def __call__(self, compute: Compute) -> Compute:
        def replay() -> torch.Tensor:
            self.num_replays += 1
            return compute()

        return replay


def with_graphs(loaded: LoadedModel, config: EngineConfig, recorder: Replayed) -> LLMEngine:
    """An engine whose runner replays; what `build_runner` does where graphs can be recorded."""
    engine = LLMEngine(loaded, config)
    runner: Any = engine._runner
    engine._runner = DecodeGraphs(
        runner,
        loaded.model,
        runner._ops,
        runner.cache,
        engine._cache,
        num_seqs=config.max_num_seqs,
        max_pages=-(-engine.card.max_model_len // config.page_size),
        record=recorder,
    )
    return engine


@pytest.mark.slow
def test_replayed_steps_yield_the_same_tokens(
    tiny_folder: Path, tiny_loaded: LoadedModel, on_device: LoadedModel, tokens_of: Any
) -> None:
    config = settings(tiny_folder, max_num_seqs=5, max_model_len=64, speculation="off")
    expected = tokens_of(LLMEngine(tiny_loaded, config).generate(requests(6, 4)))
    recorder = Replayed()
    engine = with_graphs(on_device, config, recorder)
    assert tokens_of(engine.generate(requests(6, 4))) == expected
    assert recorder.num_replays >= 5
    engine.check_integrity()


@pytest.mark.parametrize("num_seqs", [1, 3, 8, 9, 32, 33])
def test_a_step_of_any_size_has_a_graph(num_seqs: int) -> None:
    sizes = graph_sizes(num_seqs)
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[-1] == num_seqs
    for rows in range(1, num_seqs + 1):
        assert next(size for size in sizes if size >= rows) <= max(2 * rows, rows + 7)


def tiny_config(**more: Any) -> ModelConfig:
    raw = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "rope_theta": 10000.0,
    }  # fmt: skip
    return ModelConfig.from_mapping(raw | more)


MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "norm_topk_prob": True,
}  # fmt: skip


def test_graphs_are_chosen_from_facts() -> None:
    config = EngineConfig(model="m", device="cuda")
    on = choose_graphs(config, tiny_config(), on_paper())
    assert on is not None
    assert on.chosen == GRAPHS
    grouped = choose_graphs(config, tiny_config(**MOE), on_paper(), counts_on_device=True)
    assert grouped is not None
    assert grouped.chosen == GRAPHS
    moe = choose_graphs(config, tiny_config(**MOE), on_paper())
    assert moe is not None
    assert moe.chosen == ONE_BY_ONE
    assert "expert" in str(moe.rejected)
    off = choose_graphs(replace(config, graphs="off"), tiny_config(), on_paper())
    assert off is not None
    assert (off.chosen, off.source) == (ONE_BY_ONE, "explicit")
    with pytest.raises(InvalidConfig, match="graphs is 'on', but the processor reads how many"):
        choose_graphs(replace(config, graphs="on"), tiny_config(**MOE), on_paper())
    assert choose_graphs(config, tiny_config(), EngineDevice.of("cpu")) is None


def test_the_cache_takes_what_a_device_has_left() -> None:
    config = EngineConfig(model="m", device="cuda", max_num_seqs=20_000)
    machine = MachineMemory(8 << 30, 6 << 30, "a device")
    decisions = decide(config, tiny_config(), torch.bfloat16, machine=machine, device=on_paper())
    left = machine.available_bytes - decisions.memory.total_bytes
    page_bytes = decisions.layout.groups[0].page_bytes
    assert 0.96 * left < decisions.capacity.num_pages * page_bytes <= 0.97 * left
    assert decisions.capacity.num_reserved == decisions.capacity.num_pages
    assert decisions.memory.size_bytes("graphs") > 256 << 20
    graph = next(d for d in decisions.ledger if d.kind == "graph")
    assert "unverified" in graph.evidence


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", ""])
def test_a_name_that_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="must be cpu, cuda or"):
        EngineConfig(model="m", device=name)


def test_a_device_that_is_not_there_is_refused() -> None:
    absent = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(InvalidConfig, match=f"device is '{absent}', but torch .* sees"):
        EngineDevice.of(absent)


def test_a_cpu_records_no_graphs() -> None:
    with pytest.raises(InvalidConfig, match="a CPU records none"):
        EngineConfig(model="m", graphs="on")


def test_batch_invariance_is_refused_on_a_device() -> None:
    config = EngineConfig(model="m", device="cuda", batch_invariant=True)
    machine = MachineMemory(8 << 30, 6 << 30, "a device")
    with pytest.raises(InvalidConfig, match="batch_invariant is asked for, but on device 'cuda'"):
        decide(config, tiny_config(), torch.float32, machine=machine, device=on_paper())


def test_a_chunk_follows_the_data_sheets_of_the_family() -> None:
    rate = on_paper().operations_per_byte(torch.bfloat16)
    assert rate is not None
    assert 100 < rate < 350
    assert EngineDevice.of("cpu").operations_per_byte(torch.bfloat16) is None
    unknown = EngineDevice(torch.device("cuda", 0), load_traits("sm_100"))
    assert unknown.operations_per_byte(torch.bfloat16) == 120.0
