"""Shared models: a tiny random Llama with a byte tokenizer, and SmolLM2 with its oracle."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.loader import LoadedModel, load_model
from llm_engine.types import Finished, GenerationRequest, SamplingParams, TextDelta
from llm_engine.weights.resolve import BUNDLED_NAME, resolve

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
TINY = {
    "vocab_size": 257,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.fixture(scope="session")
def make_tiny() -> Callable[..., Any]:
    """Builds a transformers Llama of random float32 weights; keywords override the config."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def build(**overrides: Any) -> Any:
        torch.manual_seed(7)
        model = LlamaForCausalLM(LlamaConfig(**{**TINY, **overrides})).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                is_norm = "norm" in name
                std = (
                    0.2 if is_norm else 0.5 if parameter.dim() == 1 else parameter.shape[1] ** -0.5
                )
                std = 1.0 if "embed_tokens" in name else std
                parameter.normal_(1.0 if is_norm else 0.0, std)
        return model

    return build


@pytest.fixture(scope="session")
def save_byte_tokenizer() -> Callable[[Path], None]:
    """Writes a tokenizer of one token per byte and `<eos>`, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from llm_engine.tokenizer import _byte_level_alphabet

    def save(folder: Path) -> None:
        vocab = {char: byte for char, byte in _byte_level_alphabet().items()}
        backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(["<eos>"])
        fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
        fast.chat_template = TEMPLATE
        fast.save_pretrained(str(folder))

    return save


@pytest.fixture(scope="session")
def tiny_oracle(make_tiny: Callable[..., Any]) -> Any:
    """The transformers model whose weights `tiny_folder` holds."""
    return make_tiny()


@pytest.fixture(scope="session")
def tiny_folder(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_oracle: Any,
    save_byte_tokenizer: Callable[[Path], None],
) -> Path:
    """A model folder of several safetensors shards, with a tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_oracle.save_pretrained(folder, max_shard_size="60KB")
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_loaded(tiny_folder: Path) -> LoadedModel:
    """The tiny model in float32, shared by all engines of the tests."""
    return load_model(EngineConfig(model=str(tiny_folder), dtype="float32"))


@pytest.fixture
def tiny_engine(tiny_loaded: LoadedModel) -> Callable[..., LLMEngine]:
    """Builds an engine on the shared tiny model; keywords are settings."""

    def build(**settings: Any) -> LLMEngine:
        settings = {"page_size": 4, "prefill_chunk_tokens": 16, **settings}
        return LLMEngine(tiny_loaded, EngineConfig(model="tiny", dtype="float32", **settings))

    return build


@pytest.fixture
def make_request() -> Callable[..., GenerationRequest]:
    """Builds a request from prompt tokens; keywords are sampling parameters."""

    def build(request_id: str, prompt: Any, *, priority: int = 0, **params: Any) -> Any:
        return GenerationRequest(
            request_id=request_id,
            messages=None,
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(**params),
            priority=priority,
        )

    return build


@pytest.fixture(scope="session")
def tokens_of() -> Callable[..., dict[str, list[int]]]:
    """Collects the tokens of choice `index` of each request from events."""

    def collect(events: Any, index: int = 0) -> dict[str, list[int]]:
        tokens: dict[str, list[int]] = {}
        for request_id, event in events:
            if isinstance(event, Finished):
                continue
            assert isinstance(event, TextDelta)
            if event.index == index:
                tokens.setdefault(request_id, []).extend(event.token_ids)
        return tokens

    return collect


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2-135M-Instruct, dequantised to float32."""
    return load_model(EngineConfig(model=BUNDLED_NAME, dtype="float32"))


@pytest.fixture(scope="session")
def smollm2_oracle() -> Any:
    """The same weights as transformers reads them, through its own GGUF conversion."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = str(resolve(BUNDLED_NAME).path)
    config = LlamaConfig(**load_gguf_checkpoint(path)["config"])
    model = LlamaForCausalLM(config).float()
    checkpoint = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(checkpoint["tensors"], strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    return model.eval()
