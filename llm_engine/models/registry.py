"""Architecture name to model class, imported when needed."""

import importlib

from llm_engine.errors import UnsupportedModel
from llm_engine.models.base import CausalModel

MODELS = {
    "LlamaForCausalLM": ("llm_engine.models.llama", "LlamaModel"),
    "MistralForCausalLM": ("llm_engine.models.llama", "LlamaModel"),
    "Qwen2ForCausalLM": ("llm_engine.models.llama", "LlamaModel"),  # with biases on q, k and v
    "Qwen3ForCausalLM": ("llm_engine.models.llama", "LlamaModel"),  # with norms on q and k
    "Qwen3MoeForCausalLM": ("llm_engine.models.qwen3_moe", "Qwen3MoeModel"),
    "GptOssForCausalLM": ("llm_engine.models.gpt_oss", "GptOssModel"),
}


def model_class(architecture: str) -> type[CausalModel]:
    """The class that runs an architecture.

    Raises: UnsupportedModel listing the known ones.
    """
    if architecture not in MODELS:
        raise UnsupportedModel(
            f"architecture {architecture!r} is not supported; supported: {', '.join(MODELS)}"
        )
    module_name, class_name = MODELS[architecture]
    return getattr(importlib.import_module(module_name), class_name)
