"""Chat messages, token bytes, and what the loader makes of a machine."""

from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.chat_template import to_template_messages
from llm_engine.errors import InvalidRequest, UnsupportedModel
from llm_engine.loader import LoadedModel, choose_dtype, has_bf16_units
from llm_engine.model_config import ModelConfig
from llm_engine.models.registry import model_class
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import ChatMessage


def test_token_bytes_cover_every_byte(tiny_loaded: LoadedModel) -> None:
    tokenizer = tiny_loaded.tokenizer
    assert [tokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert tokenizer.token_bytes(256) == b"<eos>"
    assert tiny_loaded.eos_token_ids == {256}
    assert tokenizer.decode([*b"ab", 256]) == "ab"


@pytest.mark.parametrize("role", ["bot", "", "System"])
def test_unknown_roles_are_refused(role: str) -> None:
    with pytest.raises(InvalidRequest, match="must be one of system"):
        to_template_messages([ChatMessage(role, "x")], "")


def test_developer_becomes_system_where_the_template_does_not_know_it() -> None:
    messages = [
        ChatMessage("system", "a"),
        ChatMessage("developer", "b"),
        ChatMessage("user", "c"),
        ChatMessage("developer", "d"),
    ]
    expected = [("system", "a\n\nb"), ("user", "c"), ("system", "d")]
    mapped = to_template_messages(messages, "{{ messages }}")
    assert [(entry["role"], entry["content"]) for entry in mapped] == expected
    kept = to_template_messages(messages, "{% if role == 'developer' %}")
    assert [entry["role"] for entry in kept] == ["system", "developer", "user", "developer"]


def test_a_template_that_refuses_is_the_callers_fault(tiny_loaded: LoadedModel) -> None:
    with pytest.raises(InvalidRequest, match="no tools"):
        tiny_loaded.tokenizer.encode_chat([ChatMessage("tool", "x")])


def test_one_assistant_message_alone_is_served(tiny_loaded: LoadedModel) -> None:
    ids = tiny_loaded.tokenizer.encode_chat([ChatMessage("assistant", "hello")])
    assert bytes(ids) == b"[assistant]hello[assistant]"


def test_a_missing_template_says_so(tiny_loaded: LoadedModel) -> None:
    class Plain:
        backend_tokenizer = tiny_loaded.tokenizer._backend
        chat_template = None

    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(Plain()).encode_chat([ChatMessage("user", "x")])


@pytest.mark.slow
def test_smollm2_chat_equals_transformers(smollm2: LoadedModel) -> None:
    hf: Any = smollm2.tokenizer._hf
    messages = [{"role": "user", "content": "2 + 2 = 🙂"}, {"role": "assistant", "content": "4"}]
    expected = hf.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    ours = smollm2.tokenizer.encode_chat([ChatMessage(**message) for message in messages])
    assert ours == expected
    assert smollm2.eos_token_ids == {2}


def test_auto_dtype_follows_the_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : x\nflags\t\t: fpu avx512_bf16 sse\n")
    assert choose_dtype("auto", cpuinfo) == torch.bfloat16
    assert choose_dtype("float32", cpuinfo) == torch.float32
    cpuinfo.write_text("flags\t\t: fpu avx2\n")
    assert choose_dtype("auto", cpuinfo) == torch.float32
    assert not has_bf16_units(tmp_path / "absent")


def test_configs_it_cannot_run_are_refused() -> None:
    base = {
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    assert ModelConfig.from_mapping(base).num_kv_heads == 2
    with pytest.raises(UnsupportedModel, match="yarn"):
        ModelConfig.from_mapping({**base, "rope_scaling": {"type": "yarn", "factor": 2}})
    with pytest.raises(UnsupportedModel, match="gelu"):
        ModelConfig.from_mapping({**base, "hidden_act": "gelu"})
    with pytest.raises(UnsupportedModel, match="vocab_size"):
        ModelConfig.from_mapping({"hidden_size": 8, "num_attention_heads": 2})
    with pytest.raises(UnsupportedModel, match="supported: LlamaForCausalLM"):
        model_class("MambaForCausalLM")
