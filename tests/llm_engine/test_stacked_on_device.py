"""A whole engine over experts that one product takes: its ledger, its bytes, its replayed steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.loader import LoadedModel, load_model
from llm_engine.types import GenerationRequest, SamplingParams
from tests.llm_engine.models.test_grouped_experts import (
    ASKED,
    INTERPRETED,
    QWEN3_MOE,
    in_blocks,
    in_mxfp4,
)
from tests.llm_engine.models.test_grouped_experts import GPT_OSS as GPT_OSS_CONFIG
from tests.llm_engine.test_device import Replayed, with_graphs

PROMPTS = ("to be", "abc")


SMALL = QWEN3_MOE | {"num_hidden_layers": 2}  # one of them with experts


def settings(folder: Path, **more: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder), page_size=4, prefill_chunk_tokens=16, max_num_seqs=2, max_model_len=48,
        speculation="off", kernels=ASKED | {"sampler": "engine"}, **more,
    )  # fmt: skip


def requests() -> list[GenerationRequest]:
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    return [
        GenerationRequest(f"r{i}", None, tuple(prompt.encode()), params)
        for i, prompt in enumerate(PROMPTS)
    ]


def saved_and_loaded(
    oracle: Any, write: Callable[[Any, Path], None], tokenizer: Callable[[Path], None], folder: Path
) -> LoadedModel:
    write(oracle, folder)
    tokenizer(folder)
    return load_model(settings(folder), INTERPRETED)


def said(engine: LLMEngine) -> dict[str, tuple[str, str]]:
    return {d.what: (d.chosen, str(d.tier)) for d in engine.ledger}


@pytest.mark.slow
def test_replayed_steps_over_stacked_experts_yield_the_same_tokens(
    make_tiny: Callable[..., Any],
    save_byte_tokenizer: Callable[[Path], None],
    tokens_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    loaded = saved_and_loaded(make_tiny(**SMALL), in_blocks, save_byte_tokenizer, tmp_path)
    engine = LLMEngine(loaded, settings(tmp_path))
    chosen = said(engine)
    assert chosen["moe_gemm"] == ("triton", "fused")
    assert chosen["block_fp8_gemm"] == ("triton_decoded", "fused")
    assert chosen["weights"] == ("as stored", "fused")
    expected = tokens_of(engine.generate(requests()))
    recorder = Replayed()
    replaying = with_graphs(loaded, settings(tmp_path), recorder)
    assert tokens_of(replaying.generate(requests())) == expected
    assert recorder.num_replays >= 2
    replaying.check_integrity()


@pytest.mark.slow
def test_gpt_oss_keeps_its_experts(
    make_tiny: Callable[..., Any],
    save_byte_tokenizer: Callable[[Path], None],
    tokens_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    oracle = make_tiny(**GPT_OSS_CONFIG, num_hidden_layers=2)
    loaded = saved_and_loaded(oracle, in_mxfp4, save_byte_tokenizer, tmp_path)
    engine = LLMEngine(loaded, settings(tmp_path))
    assert said(engine)["weights"] == ("as stored", "fused")
    assert said(engine)["moe_gemm"] == ("triton", "fused")
    assert all(len(tokens) == 3 for tokens in tokens_of(engine.generate(requests())).values())
    assert loaded.num_parameters == oracle.num_parameters()
    assert loaded.weight_bytes < 0.8 * loaded.facts.unpacked_bytes
