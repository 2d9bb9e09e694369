"""The chunk of a prompt: large enough to hide the weights' reading, within memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.hardware.host_memory import MachineMemory
from llm_engine.config import EngineConfig
from llm_engine.decisions import decide
from llm_engine.memory.chunk import LEAST_TOKENS, WORKSPACE_SHARE, choose_chunk, hiding_tokens
from llm_engine.memory.workspace import step_bytes
from llm_engine.model_config import ModelConfig

GIB = 1 << 30


def model(**changes: object) -> ModelConfig:
    sizes = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    return ModelConfig.from_mapping(sizes | changes)


@pytest.mark.parametrize("form", ["packed", "bf16", "fp32"])
def test_with_room_the_chunk_hides_the_reading(form: str) -> None:
    choice = choose_chunk(model(), asked=None, form=form, item_bytes=4, available_bytes=8 * GIB)
    assert choice.tokens == hiding_tokens(form)
    assert choice.tokens % 64 == 0
    assert "3%" in choice.reasons[0]


def test_what_is_asked_for_is_taken() -> None:
    choice = choose_chunk(model(), asked=7, form="fp32", item_bytes=4, available_bytes=1)
    assert choice.tokens == 7
    assert "asked for" in choice.reasons[0]


@given(st.integers(0, 1 << 34), st.integers(6, 14))
def test_the_workspace_stays_within_its_share(available: int, log_width: int) -> None:
    wide = model(hidden_size=1 << log_width, intermediate_size=4 << log_width)
    choice = choose_chunk(wide, asked=None, form="bf16", item_bytes=2, available_bytes=available)
    fits = step_bytes(wide, choice.tokens, 2) <= available * WORKSPACE_SHARE
    assert fits or choice.tokens == LEAST_TOKENS
    assert LEAST_TOKENS <= choice.tokens <= hiding_tokens("bf16")
    if choice.tokens < hiding_tokens("bf16"):
        ((candidate, why),) = choice.rejected
        assert candidate == f"{hiding_tokens('bf16')} tokens"
        assert "bytes of workspace" in why


def test_an_engine_records_the_chunk_and_why() -> None:
    import torch

    config = EngineConfig(model="tiny", dtype="float32")
    machine = MachineMemory(total_bytes=8 * GIB, available_bytes=4 * GIB, bound_by="test")
    decisions = decide(config, model(), torch.float32, machine=machine)
    (found,) = [d for d in decisions.ledger if d.what == "prompt chunk"]
    assert found.chosen == f"{decisions.chunk_tokens} tokens" == f"{hiding_tokens('fp32')} tokens"
    assert (found.asked, found.source) == ("auto", "default")
    assert found.reasons
    assert found.rejected


def test_a_device_hides_its_reading_under_longer_chunks() -> None:
    assert hiding_tokens("bf16", 100.0) == 3392  # 100 operations a byte x 2 bytes / 2 / 0.03
    choice = choose_chunk(
        model(), asked=None, form="bf16", item_bytes=2, available_bytes=24 * GIB,
        operations_per_byte=100.0,
    )  # fmt: skip
    assert choice.tokens == 3392
